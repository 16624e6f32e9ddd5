"""What a rollout worker still has when its link is cut, and what it says of that over the next one."""

import asyncio
from collections.abc import Iterable

import numpy as np
import pytest

from protocol.errors import WeightsError
from protocol.messages import Generated, Holding, Message, Pull, PullFailed, Ready, Route
from protocol.settings import WorkerSettings
from workers.engines.interface import EngineLoad, Generation, Key, Sampled
from workers.link.link import Link, LinkClosed
from workers.rollout.worker import RolloutWorker

PROMPT = np.asarray([7, 7], dtype="<i4").tobytes()
ROUTE = (Route(1, 0, 1, 5, 100, ()), (PROMPT, b""))
PULL = (Pull(0, "nowhere", "digest"), ())


class EndlessEngine:
    """Samples a token for each generation in each step, under the version that it was made with."""

    capacity, kv_tokens, policy_version, continues_noise = 4, 1000, 0, True

    def __init__(self) -> None:
        self.running: list[Key] = []

    def add(self, generation: Generation) -> None:
        self.running.append(generation.key)

    def abort(self, keys: Iterable[Key]) -> None:
        self.running = [key for key in self.running if key not in keys]

    def step(self) -> list[Sampled]:
        return [Sampled(key, 1, -0.5, "") for key in self.running]

    def load_weights(self, policy_version: int, tensors: object) -> None:
        self.policy_version = policy_version

    def load(self) -> EngineLoad:
        return EngineLoad(len(self.running), 0, 0, 0, 0, 0.0, 0, 0.0)

    def is_busy(self) -> bool:
        return bool(self.running)


class CutLink(Link):
    """Brings what a controller has said, hears a few words, and is cut."""

    def __init__(self, *orders: tuple[Message, tuple[bytes, ...]], words: int) -> None:
        self.arrived = asyncio.Event()
        self.said: list[Message] = []
        self._closed = None
        self._orders, self._words, self._peer = list(orders), words, f"peer of {len(orders)} orders"

    @property
    def peer(self) -> str:
        return self._peer

    def receive_nowait(self) -> tuple[Message, tuple[bytes, ...]] | None:
        if self._orders:
            return self._orders.pop(0)
        if len(self.said) >= self._words:
            raise LinkClosed("It is gone.", True, may_reattach=True)
        return None

    def send(self, message: Message, *frames: bytes) -> None:
        self.said.append(message)

    def unacknowledged(self) -> list[tuple[Message, tuple[bytes, ...]]]:
        return []


def make_worker(monkeypatch: pytest.MonkeyPatch, *, can_pull: bool) -> RolloutWorker:
    async def fetch(pull: Pull) -> tuple[dict[str, object], int]:
        if not can_pull:
            raise WeightsError("The version is gone.")
        return {}, 0

    settings = WorkerSettings.model_validate(
        {"run_dir": "", "seed": 0, "steps": 1, "model": {"path": "model"}, "reward": {}, "trainer": {},
         "rollout": {"progress_s": 0.001, "status_s": 0.001}}
    )  # fmt: skip
    worker = RolloutWorker(settings, "")
    monkeypatch.setattr("workers.rollout.worker.make_engine", lambda *_: EndlessEngine())
    monkeypatch.setattr(worker, "_fetch", fetch)
    return worker


async def say_over(worker: RolloutWorker, link: CutLink) -> list[Message]:
    """What the worker says until the link is cut."""
    with pytest.raises(LinkClosed):
        await worker.run(link)
    return link.said


async def test_what_was_routed_behind_a_first_pull_that_failed_ends_with_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = make_worker(monkeypatch, can_pull=False)
    said = await say_over(worker, CutLink(PULL, ROUTE, words=4))
    assert isinstance(said[1], PullFailed)
    assert any(isinstance(word, Generated) for word in said)  # the controller's Abort has not come yet
    assert not worker._engine.is_busy()  # nobody may be told of it any more
    assert worker.handover() is None
    assert await say_over(worker, CutLink(words=1)) == [Ready(0, 4, 1000)]


@pytest.mark.parametrize("how", ["cut", "drained"])
async def test_a_pull_that_takes_long_is_left_when_the_link_is_cut_or_the_worker_drained(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    worker, link = (
        make_worker(monkeypatch, can_pull=True),
        CutLink(ROUTE, PULL, words=1 if how == "cut" else 10**9),
    )

    async def fetch(pull: Pull) -> tuple[dict[str, object], int]:
        asyncio.get_running_loop().call_soon(end)
        await asyncio.Event().wait()  # for a source that does not answer
        raise AssertionError

    def end() -> None:
        if how == "cut":
            link.cut("It is gone.")
        else:
            worker.drain()

    monkeypatch.setattr(worker, "_fetch", fetch)
    if how == "cut":
        await asyncio.wait_for(say_over(worker, link), 10.0)
    else:
        await asyncio.wait_for(worker.run(link), 10.0)
        assert isinstance(link.said[-1], Generated)
        assert link.said[-1].endings == ("interrupt",)
    assert not any(isinstance(word, PullFailed) for word in link.said)


async def test_what_runs_under_weights_that_were_pulled_goes_on_without_a_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = make_worker(monkeypatch, can_pull=True)
    await say_over(worker, CutLink(PULL, ROUTE, words=4))
    assert worker._engine.is_busy()
    said = await say_over(worker, CutLink(words=2))
    assert isinstance(said[0], Holding)
    assert [attempt[:3] for attempt in said[0].attempts] == [(1, 0, 1)]
