"""A worker that sends buffers of what it is given in the same turn: the lie is named, the run goes on."""

from pathlib import Path

import pytest

from controller.core.commands import Send
from controller.core.events import Event, PeerFaulted, Received
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host.resumed_run import derive
from protocol.messages import Delta, Encode, Generated, Message, PromptsEncoded, Pull, Role, Route
from tests.support.scripted import Disk, Frames, ints, prompt_of
from tests.support.scripted_run import ScriptedRun, config_of, honest, trained_groups

Lie = tuple[Message, Frames]


def make_run(path: Path) -> tuple[ScriptedRun, Disk]:
    """Two workers of each role that may have more than one."""
    config, disk = config_of(steps=4, is_local=True, reward={"workers": 2}), Disk()
    return ScriptedRun(path, config, honest(config, disk)), disk


def peer_of(run: ScriptedRun, name: str) -> str:
    return next(peer for peer, worker in run.workers.items() if worker.name == name)


def orders_after(run: ScriptedRun, events: list[Event], peer: str) -> list[Message]:
    """What a worker is going to be told upon some events, from a copy of the core."""
    with run.store.transaction():
        run.stepper.write_rest()
    copy = derive(Recording.live(run.store), until=run.stepper.last).core
    wanted = [command for event in events for command in copy.step(run.now, event)]
    return [one.message for one in wanted if isinstance(one, Send) and one.peer == peer]


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


ROLES = pytest.mark.parametrize(("role", "lie_about"), [("rollout", of_route), ("reward", of_encode)])


def assert_the_lie_is_named_and_the_run_succeeds(
    run: ScriptedRun, disk: Disk, lie: list[tuple[Event, Frames]], warning: str
) -> None:
    run.turn(lie)
    assert any(text.startswith(warning) for text in run.warnings), run.warnings
    run.run()
    assert run.end is not None
    assert run.end.is_success, run.end.reason
    assert trained_groups(disk) == list(range(8))
    with run.store.transaction():
        run.stepper.write_rest()
    assert replay(Recording.live(run.store)).is_equal


@ROLES
def test_who_tells_of_what_it_is_given_in_the_same_turn_is_closed_and_the_run_goes_on(
    tmp_path, role: Role, lie_about
):
    run, disk = make_run(tmp_path / "run.db")
    found: list[tuple[Event, Frames]] = []

    def has_work_for_the_other() -> bool:
        names = {worker.name for worker in run.workers.values()}
        if run.now < 0.05 or not {f"{role}-0", f"{role}-1"} <= names:
            return False
        fault = PeerFaulted(peer_of(run, f"{role}-0"), "for the test")
        peer = peer_of(run, f"{role}-1")
        if (lie := lie_about(orders_after(run, [fault], peer))) is None:
            return False
        found.extend([(fault, ()), (Received(peer, lie[0]), lie[1])])
        return True

    run.run(until=has_work_for_the_other)
    assert_the_lie_is_named_and_the_run_succeeds(run, disk, found, f"{role}-1 was closed: It ")


@ROLES
def test_who_attaches_and_tells_of_its_orders_in_one_turn_is_closed_and_the_run_goes_on(
    tmp_path, role: Role, lie_about
):
    run, disk = make_run(tmp_path / "run.db")
    found: list[tuple[Event, Frames]] = []

    def has_work_for_who_comes() -> bool:
        there = [peer for peer, worker in run.workers.items() if worker.role == role]
        liar = run.make("liar", role)
        came: list[Event] = [PeerFaulted(peer, "for the test") for peer in there]
        came += [Received("1ia7", message) for message, _ in [(liar.attach(), ()), *liar.begin()]]
        for order in orders_after(run, came, "1ia7"):
            if isinstance(order, Pull):
                came += [Received("1ia7", message) for message, _ in liar.answer(order, ())]
        if (lie := lie_about(orders_after(run, came, "1ia7"))) is None:
            return False
        found.extend([*((event, ()) for event in came), (Received("1ia7", lie[0]), lie[1])])
        return True

    run.run(until=has_work_for_who_comes)
    warning = f"liar was closed: It sent {type(found[-1][0].message).__name__} before it had orders."
    assert_the_lie_is_named_and_the_run_succeeds(run, disk, found, warning)
