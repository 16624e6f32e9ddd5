"""The rollout worker as a real process, with an engine that needs no model."""

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from worker_stand import ROOT, Stand, exit_of, int32

from protocol.messages import (
    Abort,
    Close,
    Delta,
    Detach,
    Generated,
    GenerationFailed,
    Interrupt,
    Pull,
    Pulled,
    PullFailed,
    Ready,
    Route,
    Segment,
    WorkerFailed,
)
from protocol.settings import RolloutSettings, WorkerSettings
from workers.rollout.worker import RolloutWorker


def rollout(factory: str) -> dict[str, Any]:
    return {"engine": f"{ROOT}/tests/integration/scripted_engine.py:{factory}"}


class Heard:
    """What was generated, put together by attempt."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int, int], list[int]] = {}
        self.logprobs: dict[tuple[int, int, int], list[float]] = {}
        self.endings: dict[tuple[int, int, int], str] = {}
        self.versions: dict[tuple[int, int, int], set[int]] = {}

    def take(self, message: Generated, frames: tuple[bytes, ...]) -> None:
        tokens = np.frombuffer(frames[0], dtype="<i4").tolist()
        logprobs = np.frombuffer(frames[1], dtype="<f4").tolist()
        for delta in message.deltas:
            key = (delta.group, delta.member, delta.attempt)
            mine = self.tokens.setdefault(key, [])
            assert delta.start == len(mine)
            assert key not in self.endings
            mine += tokens[: delta.count]
            self.logprobs.setdefault(key, []).extend(logprobs[: delta.count])
            self.versions.setdefault(key, set()).add(delta.policy_version)
            del tokens[: delta.count], logprobs[: delta.count]
            if delta.ending:
                self.endings[key] = delta.ending
        assert tokens == logprobs == []

    async def until(self, stand: Stand, condition: Callable[["Heard"], bool]) -> None:
        while not condition(self):
            self.take(*await stand.expect(Generated))


async def test_a_rollout_worker_generates_continues_refuses_and_reports_its_load(stand: Stand) -> None:
    await stand.start("rollout", rollout=rollout("make"))
    assert (await stand.expect(Ready))[0] == Ready(0, 4, 1000)
    stand.send(Route(1, 0, 0, 5, 3, ()), int32(7, 7), b"")
    stand.send(Route(1, 1, 2, 5, 3, (Segment(1, 0, 2),)), int32(7, 7), int32(0, 1))
    heard = Heard()
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.tokens == {(1, 0, 0): [0, 1, 2], (1, 1, 2): [2, 3, 4]}  # only what is new
    assert heard.logprobs[1, 1, 2] == pytest.approx([-0.003, -0.004, -0.005])
    assert set(heard.endings.values()) == {"length"}
    assert (await stand.until_idle()).decode_tokens == 6
    stand.send(Route(2, 0, 0, 5, 3, ()), int32(*range(9)), b"")
    failed, _ = await stand.expect(GenerationFailed)
    assert failed == GenerationFailed(2, 0, 0, "A prompt of 9 tokens can never run; at most 8 do.")


async def test_an_interrupt_hands_back_every_token_once_and_an_abort_nothing(stand: Stand) -> None:
    await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    for member in range(3):
        stand.send(Route(1, member, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: len(h.tokens) == 3 and min(map(len, h.tokens.values())) > 100)
    stand.send(Abort(((1, 2, 0),)))
    stand.send(Interrupt(((1, 0, 0), (1, 2, 0), (9, 9, 9))))  # the last two are not there any more
    stand.send(Interrupt(((1, 1, 0),)))
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.endings == {(1, 0, 0): "interrupt", (1, 1, 0): "interrupt"}
    for tokens in heard.tokens.values():
        assert tokens == list(range(len(tokens)))
    await stand.until_idle()
    # an attempt interrupted before its first token comes back empty
    stand.send(Route(3, 0, 0, 0, 10**6, ()), int32(7), b"")
    stand.send(Interrupt(((3, 0, 0),)))
    generated, frames = await stand.expect(Generated)
    assert generated == Generated.of((Delta(3, 0, 0, 0, 0, 0, "interrupt"),))
    assert frames == (b"", b"")


async def test_a_pull_swaps_the_weights_or_says_why_not(stand: Stand) -> None:
    torch = pytest.importorskip("torch")
    from workers.weights.store import VersionStore
    from workers.weights.tensors import publish

    store = VersionStore(stand.directory / "weights")
    good = publish(store, 3, {"weight": torch.ones(4)})
    wrong = publish(store, 4, {"bias": torch.ones(4)})
    store.close()
    await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    stand.send(Route(1, 0, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: bool(h.tokens))
    stand.send(Pull(3, str(good.location), good.digest))
    stand.send(Pull(4, str(wrong.location), wrong.digest))
    stand.send(Pull(5, str(good.location), "0" * len(good.digest)))
    stand.send(Pull(6, str(stand.directory / "nowhere"), good.digest))
    pulled, _ = await stand.expect(Pulled)
    assert (pulled.policy_version, pulled.digest) == (3, good.digest)
    failures = [(await stand.expect(PullFailed))[0] for _ in range(3)]
    assert [failed.policy_version for failed in failures] == [4, 5, 6]
    assert "Expected the tensor `weight`" in failures[0].reason
    stand.send(Interrupt(((1, 0, 0),)))
    await heard.until(stand, lambda h: bool(h.endings))
    assert heard.versions[1, 0, 0] <= {0, 3}  # no delta carries two; the failed ones changed nothing


def test_a_worker_whose_engine_is_not_made_yet_has_no_last_words() -> None:
    settings = WorkerSettings.model_construct(rollout=RolloutSettings())
    assert RolloutWorker(settings, "").handover() is None


async def test_a_signal_hands_everything_back_and_leaves(stand: Stand) -> None:
    process = await stand.start("rollout", rollout=rollout("make"))
    await stand.expect(Ready)
    for member in range(2):
        stand.send(Route(1, member, 0, 5, 10**6, ()), int32(7), b"")
    heard = Heard()
    await heard.until(stand, lambda h: len(h.tokens) == 2)
    process.send_signal(signal.SIGINT)
    await heard.until(stand, lambda h: len(h.endings) == 2)
    assert heard.endings == {(1, 0, 0): "interrupt", (1, 1, 0): "interrupt"}
    for tokens in heard.tokens.values():
        assert tokens == list(range(len(tokens)))
    await stand.expect(Detach)
    code, log = await exit_of(process)
    assert code == 0
    assert "SIGINT: handing back" in log


async def test_close_ends_a_worker_with_the_code_that_it_means(stand: Stand) -> None:
    for is_fault, expected in ((False, 0), (True, 1)):
        process = await stand.start("rollout", rollout=rollout("make"))
        await stand.expect(Ready)
        stand.send(Close("The run is over.", is_fault))
        code, log = await exit_of(process)
        assert (code, "The run is over." in log) == (expected, True)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_none", "This engine cannot be made."),
        ("make_nothing", "has no `make_nothing`"),
        ("make_broken", "failed with KeyError: 'surprise'"),
    ],
)
async def test_an_engine_that_cannot_be_made_fails_the_worker_in_words(
    stand: Stand, factory: str, words: str
) -> None:
    process = await stand.start("rollout", rollout=rollout(factory))
    failed, _ = await stand.expect(WorkerFailed)
    assert words in failed.reason
    code, log = await exit_of(process)
    assert code == 1
    assert ("Traceback" in log) == (factory == "make_broken")  # a traceback only where nobody foresaw it
