"""Runs the engine of a checkpoint in this process.

Invariant: all engine calls come from one thread, and none blocks the event loop.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Literal, NamedTuple, Self

from protocol.blame import without_stop
from protocol.errors import ConfigError
from protocol.settings import WorkerSettings
from workers.engines.interface import Engine, Generation, Key, Sampled
from workers.engines.made_engine import make_engine


class LocalAnswer(NamedTuple):
    """One sampled response."""

    tokens: list[int]
    logprobs: list[float]
    ending: Literal["stop", "length"]


class LocalEngine:
    """Samples with `evaluation.sampling`, within `async with`."""

    _engine: Engine

    def __init__(self, settings: WorkerSettings, model_directory: str, adapter: str = "") -> None:
        """`adapter`: directory of an adapter for the model; its `trainer.lora` is in the settings."""
        self._settings, self._directory, self._adapter = settings, model_directory, adapter
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting: dict[Key, tuple[LocalAnswer, asyncio.Future[LocalAnswer]]] = {}
        self._given_up: list[Key] = []
        self._has_work = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._count = 0

    async def __aenter__(self) -> Self:
        """Raises: ConfigError if the engine cannot be made, or the adapter does not fit."""
        loop = asyncio.get_running_loop()
        self._engine = await loop.run_in_executor(self._thread, self._make)
        await self._tasks.__aenter__()
        self._stepping = self._tasks.create_task(self._step(), name="engine")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stepping.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._thread.shutdown()

    def _make(self) -> Engine:
        """Make the engine, in its thread. Raises: ConfigError."""
        engine = make_engine(self._settings, self._directory)
        if not self._adapter:
            return engine
        from workers.models.lora import read_adapter  # with torch, which other engines may do without

        try:
            engine.load_weights(1, read_adapter(self._adapter, self._directory))
        except ValueError as error:
            raise ConfigError(
                f"The adapter {self._adapter} cannot be put over the model {self._directory}: {error} "
                "Expected the model that it was trained on: model.path=DIR."
            ) from None
        return engine

    async def generate(self, tokens: Sequence[int], most: int, *, seed: int) -> LocalAnswer:
        """A response to these tokens, of at most `most`; if it is cancelled, the engine aborts it.

        Raises: ValueError if the engine refuses the tokens.
        """
        self._count += 1
        key = (self._count, 0, 1)
        future: asyncio.Future[LocalAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = LocalAnswer([], [], "stop"), future
        sampling = self._settings.evaluation_sampling
        generation = Generation(key, list(tokens), [], most, seed, sampling)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, without_stop, self._engine.add, generation
            )
            self._has_work.set()
            return await future
        except asyncio.CancelledError:  # the row has failed: free its place in the engine
            self._given_up.append(key)
            self._has_work.set()
            raise
        finally:
            del self._waiting[key]

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            self._has_work.clear()  # whatever is added from here on sets it again
            given_up, self._given_up = self._given_up, []
            found, is_busy = await loop.run_in_executor(self._thread, without_stop, self._advance, given_up)
            for sampled in found:
                if sampled.key not in self._waiting:
                    continue
                told, future = self._waiting[sampled.key]
                told.tokens.append(sampled.token)
                told.logprobs.append(sampled.logprob)
                if sampled.ending and not future.done():
                    future.set_result(told._replace(ending=sampled.ending))
            if is_busy:
                self._has_work.set()

    def _advance(self, given_up: Sequence[Key]) -> tuple[list[Sampled], bool]:
        """One step after aborting `given_up`, and whether the engine is busy. In the engine's thread."""
        if given_up:
            self._engine.abort(given_up)
        sampled = self._engine.step()
        return sampled, self._engine.is_busy()
