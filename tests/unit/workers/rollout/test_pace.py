"""A rollout worker over an engine that steps by itself: what is in flight, and a loop that never waits."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import numpy as np
import pytest

from protocol.errors import RunError
from protocol.messages import Abort, Generated, Interrupt, Message, Pull, Pulled, PullFailed, Route
from protocol.settings import WorkerSettings
from workers.engines.interface import EngineLoad, Generation, Key, RunsByItself, Sampled
from workers.link.link import Link
from workers.rollout.worker import RolloutWorker

PROMPT = np.asarray([7, 7], dtype="<i4").tobytes()
KEYS: list[Key] = [(1, 0, 1), (1, 1, 1)]
TENSORS: dict[str, object] = {}


class ScriptedEngine:
    """Its core steps when the test says so; a token is the version of the weights that sampled it."""

    capacity, kv_tokens, policy_version, continues_noise = 4, 1000, 0, True

    def __init__(self) -> None:
        self.live: list[Key] = []
        self.outputs: deque[list[Sampled]] = deque()
        self.is_paused = False
        self.refuses = self.is_broken = False
        self.stirred = asyncio.Event()
        self._call: Callable[[], None] = lambda: None

    def core_steps(self) -> None:
        assert not self.is_paused
        self.outputs.append([Sampled(key, self.policy_version, -0.5, "") for key in self.live])
        self._call()

    def breaks(self) -> None:
        self.is_broken = True
        self._call()

    def add(self, generation: Generation) -> None:
        self.live.append(generation.key)
        self.stirred.set()

    def abort(self, keys: Iterable[Key]) -> None:
        self.live = [key for key in self.live if key not in keys]
        self.stirred.set()

    def step(self) -> list[Sampled]:
        if self.is_broken:
            raise RunError("The core has ended.")
        assert self.outputs, "the loop would wait here"
        self.stirred.set()
        return [item for item in self.outputs.popleft() if item.key in self.live]

    def load_weights(self, policy_version: int, tensors: object) -> None:
        assert self.is_settled()
        if self.refuses:
            raise ValueError("They do not fit.")
        self.policy_version = policy_version

    def load(self) -> EngineLoad:
        return EngineLoad(len(self.live), 0, 0, 0, 0, 0.0, 0, 0.0)

    def is_busy(self) -> bool:
        return bool(self.live)

    def on_step(self, call: Callable[[], None]) -> None:
        self._call = call

    def has_stepped(self) -> bool:
        return bool(self.outputs) or self.is_broken

    def pause(self) -> None:
        if not self.is_paused:
            self.core_steps()  # what was in flight
        self.is_paused = True

    def is_settled(self) -> bool:
        return self.is_paused and not self.outputs

    def resume(self) -> None:
        self.is_paused = False


class ToldLink(Link):
    """Brings what the test orders, and remembers what the worker says."""

    def __init__(self, stirred: asyncio.Event) -> None:
        self.arrived, self.stirred = asyncio.Event(), stirred
        self.said: list[tuple[Message, tuple[bytes, ...]]] = []
        self.orders: deque[tuple[Message, tuple[bytes, ...]]] = deque()
        self._closed = None

    def order(self, message: Message, *frames: bytes) -> None:
        self.orders.append((message, frames))
        self.arrived.set()

    def receive_nowait(self) -> tuple[Message, tuple[bytes, ...]] | None:
        if self.orders:
            return self.orders.popleft()
        self.arrived.clear()
        return None

    def send(self, message: Message, *frames: bytes) -> None:
        self.said.append((message, frames))
        self.stirred.set()

    def generated(self) -> list[tuple[Key, int, str, list[int]]]:
        """(key, policy version, ending, tokens) of every delta."""
        found = []
        for message, frames in self.said:
            if isinstance(message, Generated):
                tokens = np.frombuffer(frames[0], "<i4").tolist()
                for delta in message.deltas:
                    found.append((delta[:3], delta.policy_version, delta.ending, tokens[: delta.count]))
                    tokens = tokens[delta.count :]
        return found


class Stand:
    """A worker that serves, its link and its engine."""

    def __init__(self, worker: RolloutWorker, engine: ScriptedEngine) -> None:
        self.worker, self.engine, self.link = worker, engine, ToldLink(engine.stirred)
        self.serving = asyncio.create_task(worker.run(self.link))
        self.serving.add_done_callback(lambda _: engine.stirred.set())

    async def route(self, keys: Sequence[Key] = KEYS) -> None:
        for key in keys:
            self.link.order(Route(*key, 100, 100, ()), PROMPT, b"")
        await self.when(lambda: len(self.engine.live) == len(keys))

    async def told(self, kind: type[Message], *, count: int = 1) -> None:
        await self.when(lambda: sum(isinstance(message, kind) for message, _ in self.link.said) >= count)

    async def taken(self) -> None:
        await self.when(lambda: not self.engine.outputs)

    async def when(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self.serving.done():
                raise AssertionError("the worker has ended") from self.serving.exception()
            self.engine.stirred.clear()
            await asyncio.wait_for(self.engine.stirred.wait(), 60)


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    async def fetch(pull: Pull) -> tuple[dict[str, object], int]:
        return TENSORS, 0

    settings = WorkerSettings.model_validate(
        {"run_dir": "", "seed": 0, "steps": 1, "model": {"path": "model"}, "reward": {}, "trainer": {},
         "rollout": {"progress_s": 1000.0, "status_s": 1000.0}}
    )  # fmt: skip
    worker, engine = RolloutWorker(settings, ""), ScriptedEngine()
    assert isinstance(engine, RunsByItself)
    monkeypatch.setattr("workers.rollout.worker.make_engine", lambda *_: engine)
    monkeypatch.setattr(worker, "_fetch", fetch)
    stand = Stand(worker, engine)
    yield stand
    stand.serving.cancel()
    await asyncio.gather(stand.serving, return_exceptions=True)


async def test_what_is_in_flight_while_weights_change_is_reported_under_the_version_that_sampled_it(
    stand: Stand,
) -> None:
    await stand.route()
    for version in (1, 2):
        for _ in range(3):
            stand.engine.core_steps()
        stand.link.order(Pull(version, "nowhere", "digest"))
        await stand.told(Pulled, count=version)
    stand.engine.core_steps()
    await stand.taken()
    stand.worker.drain()
    await stand.serving
    found = stand.link.generated()
    assert {version for _, version, _, _ in found} == {0, 1, 2}
    assert all(set(tokens) == {version} for _, version, _, tokens in found), found
    counts = {key: sum(len(tokens) for other, _, _, tokens in found if other == key) for key in KEYS}
    assert counts == dict.fromkeys(KEYS, 10)  # 3 steps and one in flight, twice; one, and one in flight


async def test_an_interrupt_keeps_what_was_in_flight_and_the_others_go_on(stand: Stand) -> None:
    await stand.route()
    stand.engine.core_steps()
    stand.link.order(Interrupt((KEYS[0],)))
    await stand.when(lambda: "interrupt" in [ending for _, _, ending, _ in stand.link.generated()])
    found = stand.link.generated()
    assert sum(len(tokens) for key, _, _, tokens in found if key == KEYS[0]) == 2
    assert stand.engine.live == [KEYS[1]]
    stand.engine.core_steps()  # it was let go on
    await stand.taken()


async def test_weights_that_are_refused_leave_the_engine_running(stand: Stand) -> None:
    await stand.route()
    stand.engine.refuses = True
    stand.link.order(Pull(1, "nowhere", "digest"))
    await stand.told(PullFailed)
    assert not stand.engine.is_paused
    assert stand.engine.policy_version == 0


async def test_while_no_step_has_come_messages_are_heard(stand: Stand) -> None:
    await stand.route()
    stand.link.order(Abort((KEYS[0],)))
    await stand.when(lambda: stand.engine.live == [KEYS[1]])
    assert not stand.serving.done()


async def test_an_engine_that_has_work_and_is_silent_for_the_lease_ends_the_worker_in_words(
    stand: Stand,
) -> None:
    await stand.route()
    stand.worker._pace.lease_s = 0.02
    stand.engine.core_steps()
    with pytest.raises(RunError, match=r"sampled nothing for 0\.02 s.*lease_s"):
        await asyncio.wait_for(stand.serving, 60)


async def test_a_core_that_ends_while_nothing_runs_ends_the_worker_in_words(stand: Stand) -> None:
    await stand.route()
    stand.link.order(Abort(tuple(KEYS)))
    await stand.when(lambda: not stand.engine.live)
    stand.engine.breaks()
    with pytest.raises(RunError, match="has ended"):
        await asyncio.wait_for(stand.serving, 60)
