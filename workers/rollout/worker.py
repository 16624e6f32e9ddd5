"""The rollout worker: runs an engine, receives orders and reports sampled tokens.

Invariants:
- Every token that the engine sampled is reported exactly once, or given up by an Abort; the endings of one
  engine step leave in one message at the end of that step.
- A delta never mixes policy versions: everything is reported before weights are swapped.
- An attempt is answered by exactly one ending, or GenerationFailed, or nothing after an Abort.
- Reports that no controller has acknowledged are kept until one says that it has them, or does not want them;
  while a controller is looked for, generation goes on.
- The engine is driven from the event loop's own thread: a hung engine stops the beats, or ends the worker
  (pace.py).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, assert_never, cast

import numpy as np

from protocol.errors import NoRoom, RunError, SourcesUnreachable, WeightsError
from protocol.kept_sets import KeptSet
from protocol.messages import (
    ITEM_BYTES,
    Abort,
    Delta,
    Ending,
    Generated,
    GenerationFailed,
    InstanceStatus,
    Interrupt,
    Keep,
    Message,
    Pull,
    Pulled,
    PullFailed,
    Ready,
    Release,
    Released,
    Report,
    Retire,
    Route,
    Serve,
    Serving,
    ToRollout,
)
from protocol.plain_text import begin_and_end
from protocol.segments import ON_DISK, segment_directory, sweep, this_host
from protocol.settings import WorkerSettings
from workers.engines.interface import Engine, EngineLoad, Generation, Key, ReleasingEngine, Sampled
from workers.engines.made_engine import make_engine
from workers.link.link import Link, LinkClosed
from workers.rollout.pace import EnginePace
from workers.rollout.rhythm import Rhythm
from workers.rollout.unacknowledged import Unacknowledged
from workers.weights.exchange_process import WeightsExchangeProcess, make_weights_exchange

logger = logging.getLogger(__name__)

TOLD = tuple(one.name for one in fields(EngineLoad))  # each is a field of InstanceStatus, too
MAX_KEPT_BYTES = 16 << 20  # of kept sets in one report; a frame may have 64 MB
MOST_WITHOUT_ROOM = 3  # pulls for which this host has no room; the controller would look for whom to blame


@dataclass(slots=True)
class _Attempt:
    """Tokens that one attempt has sampled and not reported."""

    reported: int = 0
    policy_version: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[KeptSet] = field(default_factory=list)  # if sampling cuts


class RolloutWorker:
    """One engine instance behind a link."""

    _engine: Engine
    _pace: EnginePace
    _link: Link

    def __init__(self, settings: WorkerSettings, model_directory: str) -> None:
        self._settings = settings
        self._model_directory = model_directory
        self._attempts: dict[Key, _Attempt] = {}
        phase = random.random()
        self._progress, self._load = Rhythm(phase), Rhythm(phase)  # as often as the controller wants reports
        self._status_sequence = 0
        self._is_known_idle = True
        self._is_draining = False
        self._wake: Callable[[], None] = lambda: None  # wakes the loop that serves, once there is one
        self._has_engine = self._has_pulled = False
        self._without_room = 0  # pulls since the last one for which this host had room
        self._is_released = settings.is_colocated  # without weights, until it pulls
        self._is_cut = settings.rollout.sampling.is_cut
        self._kept_bytes = 0  # of unreported kept sets
        self._unacknowledged = Unacknowledged()
        self._weights_exchange: WeightsExchangeProcess | None = None  # once other hosts give or need versions

    def drain(self) -> None:
        """Hand back all trajectories and return from `run`, after the current engine step."""
        self._is_draining = True
        self._wake()

    async def run(self, link: Link) -> None:
        """Serve until drained; over another link, with the same engine and its trajectories.

        Raises: LinkClosed, ConfigError if the engine cannot be made.
        """
        self._link, self._wake = link, link.wake
        if not self._has_engine:
            self._engine = await asyncio.to_thread(make_engine, self._settings, self._model_directory)
            self._pace = EnginePace(self._engine, step=self._step, wake=lambda: self._wake())
            self._has_engine = True
        engine, self._pace.lease_s = self._engine, link.lease_s
        rollout = self._settings.rollout  # of a controller that has said nothing else yet
        self._set_pace(rollout.first_progress_s, rollout.first_status_s)
        if self._unacknowledged.is_pending:
            reported = {key: attempt.reported for key, attempt in self._attempts.items()}
            link.send(self._unacknowledged.holding(engine.policy_version, reported))
        link.send(Ready(engine.policy_version, engine.capacity, engine.kv_tokens))
        logger.info(
            "Ready: engine %s, %d responses at a time, room for %d tokens.",
            self._settings.rollout.engine, engine.capacity, engine.kv_tokens,
        )  # fmt: skip
        try:
            await self._serve()
        except LinkClosed as closed:
            if not closed.may_reattach:
                await self._leave_exchange()
            elif self._has_pulled:
                self._unacknowledged.cut(link.peer, link.unacknowledged())
            else:  # trajectories after a failed pull are of no version of this run
                self._drop(list(self._attempts))
            raise
        await self._leave_exchange()

    async def go_on(self, found: "asyncio.Task[Link]") -> None:
        """Continue to generate without a controller until one is found."""
        await self._pace.until(found)

    def handover(self) -> tuple[Unacknowledged, int] | None:
        """The unfinished work that a cut link leaves, and its policy version; None if there is none."""
        if not self._unacknowledged.is_pending:
            return None
        try:
            self._pace.settle_now()
        except RunError as error:  # tokens from before are handed over
            logger.error("%s", error)
        self._hand_back(list(self._attempts))
        return self._unacknowledged, self._engine.policy_version

    async def _serve(self) -> None:
        link, engine = self._link, self._engine
        while True:
            while (item := link.receive_nowait()) is not None:
                await self._handle(*item)
            if self._is_draining:
                await self._interrupt(list(self._attempts))
                return
            if self._pace.is_due():
                await self._pace.turn()
            else:
                if not engine.is_busy():
                    self._report_dry()
                await self._pace.rest(link.arrived)

    async def _handle(self, message: Message, frames: tuple[bytes, ...]) -> None:
        order = cast("ToRollout", message)  # the link lets nothing else pass
        match order:
            case Route():
                if not self._is_released:  # else the pull before it has failed, and the route is taken back
                    self._add(order, frames)
            case Release():
                self._release()
            case Interrupt(attempts):
                await self._interrupt(attempts)
            case Abort(attempts):
                self._drop(attempts)
            case Pull():
                await self._pull(order)
            case Keep():
                self._hand_over(order)
            case Serve():
                self._link.send(Serving(await self._exchange().start()))
            case Retire(policy_version):
                await self._exchange().retire(policy_version)
            case Report(progress_s, status_s):
                self._set_pace(progress_s, status_s)
            case _:
                assert_never(order)

    def _add(self, route: Route, frames: tuple[bytes, ...]) -> None:
        key = (route.group, route.member, route.attempt)
        try:
            prompt, response = (np.frombuffer(frame, dtype="<i4").tolist() for frame in frames)
            sampling = self._settings.evaluation_sampling if route.is_evaluation else None
            self._engine.add(Generation(key, prompt, response, route.max_new_tokens, route.seed, sampling))
        except ValueError as error:
            self._say(GenerationFailed(*key, begin_and_end(str(error))))
            return
        self._attempts[key] = _Attempt(policy_version=self._engine.policy_version)
        self._is_known_idle = False

    def _step(self) -> None:
        endings = self._absorb(self._engine.step())
        if endings:
            self._report(endings)
        now = time.monotonic()
        if self._progress.is_due(now) or self._kept_bytes >= MAX_KEPT_BYTES:
            self._report_progress()
        if self._load.is_due(now):
            self._report_status()

    def _set_pace(self, progress_s: float, status_s: float) -> None:
        now = time.monotonic()
        self._progress.set_period(progress_s, now)
        self._load.set_period(status_s, now)

    def _absorb(self, sampled: list[Sampled]) -> list[tuple[Key, Ending]]:
        endings: list[tuple[Key, Ending]] = []
        version = self._engine.policy_version
        for key, token, logprob, ending, kept in sampled:
            attempt = self._attempts[key]
            attempt.policy_version = version
            attempt.tokens.append(token)
            attempt.logprobs.append(logprob)
            if self._is_cut:
                attempt.kept.append(kept)
                self._kept_bytes += len(kept.words)
            if ending:
                endings.append((key, ending))
        return endings

    async def _interrupt(self, keys: Sequence[Key]) -> None:
        await self._pace.settle()
        self._hand_back([key for key in keys if key in self._attempts])
        self._pace.go_on()

    def _hand_back(self, keys: list[Key]) -> None:
        self._engine.abort(keys)
        self._report([(key, "interrupt") for key in keys])

    def _drop(self, keys: Sequence[Key]) -> None:
        self._engine.abort(keys)
        for key in keys:
            if (attempt := self._attempts.pop(key, None)) is not None:
                self._kept_bytes -= sum(len(one.words) for one in attempt.kept)

    def _release(self) -> None:
        """Leave the device to the trainer, until the next pull."""
        assert isinstance(self._engine, ReleasingEngine), "make_engine has looked"
        began = time.monotonic()
        self._hand_back(list(self._attempts))
        found = self._engine.release()
        self._is_released = True
        self._link.send(Released(found.peak_bytes, found.left_bytes, time.monotonic() - began))

    def _hand_over(self, keep: Keep) -> None:
        """Drop the attempts that the run does not want any more, and report the others."""
        wanted = {tuple(attempt[:3]) for attempt in keep.attempts}
        dropped = [key for key in self._attempts if key not in wanted]
        self._drop(dropped)
        kept, tokens = len(self._attempts), 0
        for message, frames in self._unacknowledged.release(keep):
            self._link.send(message, *frames)
            tokens += sum(message.counts) if isinstance(message, Generated) else 0
        logger.info(
            "Handed over %d tokens of %d responses; %d of them go on, %d others were dropped.",
            tokens, len(wanted), kept, len(dropped),
        )  # fmt: skip

    def _say(self, message: Message, *frames: bytes) -> None:
        """Send a message to the controller, or keep it for the next one."""
        if self._unacknowledged.is_pending:
            self._unacknowledged.add(message, frames)
        else:
            self._link.send(message, *frames)

    def _report_progress(self) -> None:
        self._report([(key, "") for key, attempt in self._attempts.items() if attempt.tokens])

    def _report(self, endings: Iterable[tuple[Key, Ending]]) -> None:
        """Report the tokens of these attempts since the last report; ended attempts are removed."""
        deltas: list[Delta] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        kept: list[list[KeptSet]] = []
        for key, ending in endings:
            attempt = self._attempts[key]
            count = len(attempt.tokens)
            deltas.append(Delta(*key, attempt.reported, count, attempt.policy_version, ending))
            tokens += attempt.tokens
            logprobs += attempt.logprobs
            kept.append(attempt.kept)
            if ending:
                del self._attempts[key]
            else:
                self._attempts[key] = _Attempt(attempt.reported + count, attempt.policy_version)
        if deltas:
            words, frames = _kept_frames(kept)
            self._kept_bytes -= sum(map(len, frames[1:]))
            self._say(
                Generated.of(deltas, words),
                np.asarray(tokens, dtype="<i4").tobytes(),
                np.asarray(logprobs, dtype="<f4").tobytes(),
                *frames,
            )

    def _report_dry(self) -> None:
        """Report at once that there is nothing to do, for whatever reason."""
        if not self._is_known_idle:
            self._is_known_idle = True
            self._report_status()

    def _report_status(self) -> None:
        load = self._engine.load()
        self._status_sequence += 1
        told: dict[str, Any] = {name: getattr(load, name) for name in TOLD}
        self._say(InstanceStatus(self._status_sequence, self._engine.policy_version, **told))

    async def _pull(self, pull: Pull) -> None:
        """Fetch a version while the engine goes on, then swap the weights between two steps."""
        started = time.monotonic()
        fetching = asyncio.create_task(self._fetch(pull), name="fetch")
        try:
            await self._pace.until(fetching, over=self._is_over, arrived=self._link.arrived)
            if not fetching.done():
                return  # cut or drained: the attempts must not wait for a source
            tensors, refused = fetching.result()
            await self._pace.settle()
            self._report_progress()  # under the version that sampled it
            self._progress.wait(time.monotonic())
            self._engine.load_weights(pull.policy_version, tensors)
            self._has_pulled, self._is_released, self._without_room = True, False, 0
        except (WeightsError, ValueError) as error:
            self._without_room += isinstance(error, NoRoom)
            most = MOST_WITHOUT_ROOM if self._has_pulled else 1  # without a version nothing goes on
            if self._without_room >= most:
                raise RunError(str(error)) from error
            logger.warning("%s", error)
            is_unreachable = isinstance(error, SourcesUnreachable)
            self._link.send(PullFailed(pull.policy_version, begin_and_end(str(error)), is_unreachable))
            return
        finally:
            fetching.cancel()
            self._pace.go_on()
        for attempt in self._attempts.values():
            attempt.policy_version = pull.policy_version
        pull_s = time.monotonic() - started
        logger.info("Version %d is loaded, in %.2f s.", pull.policy_version, pull_s)
        self._link.send(Pulled(pull.policy_version, pull.digest, pull_s, refused))

    def _is_over(self) -> bool:
        return self._is_draining or self._link.is_closed

    async def _fetch(self, pull: Pull) -> tuple[dict[str, Any], int]:
        """The tensors of a version, mapped and verified; and the number of chunks that came with errors."""
        from workers.weights.tensors import read  # imports torch, which an engine of the user's may not need

        location, refused = pull.location, 0
        if pull.sources:
            fetched = await self._exchange().fetch(pull.policy_version, pull.digest, pull.sources)
            location, refused = fetched.location, fetched.refused
        return await asyncio.to_thread(read, location, pull.digest), refused

    async def _leave_exchange(self) -> None:
        if self._weights_exchange is not None:
            await self._weights_exchange.close()

    def _exchange(self) -> WeightsExchangeProcess:
        if self._weights_exchange is None:
            base, run, host = self._settings.weights.directory, self._settings.run_dir, this_host()
            directory = segment_directory(run, host=host, base=base)
            on_disk = segment_directory(run, host=host, base=str(ON_DISK))
            sweep(base, keep=directory)
            self._weights_exchange = make_weights_exchange(
                directory,
                lambda: self._link,
                self._settings,
                is_writers=False,
                on_disk=on_disk if base == "auto" and on_disk != directory else None,
            )
        return self._weights_exchange


def _kept_frames(kept: list[list[KeptSet]]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """The words of each delta's kept sets, and the frames of their codes and words; empty if none cuts."""
    sets = [one for some in kept for one in some]
    if not any(one.code for one in sets):
        return (), ()
    words = tuple(sum(len(one.words) for one in some) // ITEM_BYTES for some in kept)
    codes = np.asarray([one.code for one in sets], dtype="<i4").tobytes()
    return words, (codes, b"".join(one.words for one in sets))
