"""Buffers of what a worker is given in the very turn in which it tells of it: the lie is named, the run goes on."""

from pathlib import Path

import pytest

from controller.core.events import PeerFaulted, Received
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host.resumed_run import derive
from protocol.messages import Delta, Encode, Generated, Message, PromptsEncoded, Role, Route
from tests.support.scripted import Disk, Frames, ints, prompt_of
from tests.support.scripted_run import ScriptedRun, config_of, honest, trained_groups

Lie = tuple[Message, Frames]


def make_run(path: Path) -> tuple[ScriptedRun, Disk]:
    """Two workers of each role that may have more than one."""
    config, disk = config_of(steps=4, is_local=True, reward={"workers": 2}), Disk()
    return ScriptedRun(path, config, honest(config, disk)), disk


def peer_of(run: ScriptedRun, name: str) -> str:
    return next(peer for peer, worker in run.workers.items() if worker.name == name)


def orders_after(run: ScriptedRun, fault: PeerFaulted, peer: str) -> list[Message]:
    """What a worker is going to be told when another is closed, from a copy of the core."""
    with run.store.transaction():
        run.stepper.write_rest()
    copy = derive(Recording.live(run.store), until=run.stepper.last).core
    wanted = copy.step(run.now, fault)
    return [one.message for one in wanted if getattr(one, "peer", "") == peer]


def of_route(orders: list[Message]) -> Lie | None:
    routes = [order for order in orders if isinstance(order, Route)]
    if not routes:
        return None
    told = Generated.of(tuple(Delta(one.group, one.member, one.attempt, 0, 1, 0, "stop") for one in routes))
    return told, (ints(1), b"\0\0\0\0") * len(routes)


def of_encode(orders: list[Message]) -> Lie | None:
    encodes = [order for order in orders if isinstance(order, Encode)]
    if not encodes:
        return None
    prompts = [prompt_of(group) for group in encodes[0].groups]
    encoded = tuple((group, len(row)) for group, row in zip(encodes[0].groups, prompts, strict=True))
    return PromptsEncoded(encoded, ()), tuple(ints(*row) for row in prompts)


@pytest.mark.parametrize(("role", "lie_about"), [("rollout", of_route), ("reward", of_encode)])
def test_who_tells_of_what_it_is_given_in_the_same_turn_is_closed_and_the_run_goes_on(
    tmp_path, role: Role, lie_about
):
    run, disk = make_run(tmp_path / "run.db")
    found: list[tuple[PeerFaulted, str, Lie]] = []

    def has_work_for_the_other() -> bool:
        names = {worker.name for worker in run.workers.values()}
        if run.now < 0.05 or not {f"{role}-0", f"{role}-1"} <= names:
            return False
        fault = PeerFaulted(peer_of(run, f"{role}-0"), "for the test")
        peer = peer_of(run, f"{role}-1")
        if (lie := lie_about(orders_after(run, fault, peer))) is None:
            return False
        found.append((fault, peer, lie))
        return True

    run.run(until=has_work_for_the_other)
    fault, peer, (message, frames) = found[0]
    run.turn([(fault, ()), (Received(peer, message), frames)])
    assert any(text.startswith(f"{role}-1 was closed: It ") for text in run.warnings), run.warnings
    run.run()
    assert run.end is not None
    assert run.end.is_success, run.end.reason
    assert trained_groups(disk) == list(range(8))
    with run.store.transaction():
        run.stepper.write_rest()
    assert replay(Recording.live(run.store)).is_equal
