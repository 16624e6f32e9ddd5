"""Progress in columns changes nothing that anybody sees."""

import random
from dataclasses import replace

import pytest

from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.core.events import Received
from controller.core.state.progress.columns import Columns, Given
from controller.core.state.progress.trajectory import Trajectory
from controller.core.state.told import ToldInstance
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from protocol.ids import TrajectoryId
from protocol.messages import Delta, Generated
from tests.unit.controller.core.state.test_steady_reports import busy_run, changed


def word(core: Core, peer: str, rng: random.Random) -> Generated:
    """What this instance may say next, mostly of all that it has."""
    told = core.state.registry.workers[peer].told
    assert isinstance(told, ToldInstance)
    version = core.state.registry.workers[peer].next_version
    deltas = []
    for key, given in told.given.items():
        most = 2 if given.most and given.reported + 2 <= given.most else 1
        ending = rng.choice(["stop", "interrupt"]) if rng.random() < 0.03 else ""
        deltas.append(Delta(*key, given.reported, rng.randint(1, most), version, ending))
    if rng.random() < 0.2:
        del deltas[rng.randrange(len(deltas))]
    if rng.random() < 0.1:
        rng.shuffle(deltas)
    message = Generated.of(deltas)
    return changed(message, rng) if deltas and rng.random() < 0.03 else message


def known(core: Core) -> list[object]:
    """All that the core knows of progress."""
    members = [member for group in core.state.groups.values() for member in group.members]
    registry = core.state.registry
    return [
        [(m.id, m.state, m.reported, m.response_tokens, tuple(m.segments), m.since) for m in members],
        [(m.expected_tokens, m.next_prediction_at, m.is_urgent) for m in members],
        [(i.peer, i.resident_tokens, i.expected_tokens, i.urgent, i.running) for i in registry.instances()],
        [{key: given.reported for key, given in i.told.given.items()} for i in registry.instances()],
        core.state.accounts.tokens(),
    ]


def test_a_core_with_columns_and_one_without_say_and_know_the_same(tmp_path, monkeypatch):
    run, in_columns = busy_run(tmp_path / "run.db"), 0
    image, strategies = Freezer().freeze(run.core), load_strategies(run.core.state.config)
    for seed in range(12):
        rng, now = random.Random(seed), run.core.state.now
        core, plain = thaw(image, strategies), thaw(image, strategies)
        for instance in plain.state.registry.instances():
            instance.told.columns.clear()
        for _ in range(40):
            able = [i.peer for i in core.state.registry.instances() if i.running and i.told.given]
            if not able:
                break
            now += rng.random() / 10
            peer = rng.choice(able)
            event = Received(peer, word(core, peer, rng))
            commands = core.step(now, event)
            with monkeypatch.context() as patched:
                patched.setattr(Columns, "add", lambda *_: None)
                assert plain.step(now, event) == commands
            for one in core.state.registry.instances():
                in_columns += len(one.told.columns.given)
            if rng.random() < 0.3:
                assert known(core) == known(plain)
                core.check()
        assert known(core) == known(plain)
    assert in_columns > 500


def test_an_image_does_not_show_who_has_looked(tmp_path):
    run, rng = busy_run(tmp_path / "run.db"), random.Random(0)
    strategies = load_strategies(run.core.state.config)
    image = Freezer().freeze(run.core)
    looked, other = thaw(image, strategies), thaw(image, strategies)
    for _ in range(10):
        able = [i.peer for i in other.state.registry.instances() if i.running and i.told.given]
        peer = rng.choice(able)
        event = Received(peer, word(other, peer, rng))
        now = other.state.now + 0.1
        assert other.step(now, event) == looked.step(now, event)
        known(looked)
    assert Freezer().freeze(looked) == Freezer().freeze(other)


def lined_up(*lengths: int) -> Columns:
    """Attempts 1 of members of group 7, each with so many tokens, none to be looked at for long."""
    columns = Columns()
    for number, length in enumerate(lengths):
        member = Trajectory(TrajectoryId(7, number), 4, attempt=1, next_prediction_at=1000)
        assert member.extend(1, 3, length)
        given = Given(number, length, most=2000, member=member)
        columns.add(given, (7, number, 1), 3)
    return columns


def report(columns: Columns, count: int, **others: tuple[object, ...]) -> Generated:
    """Of all of them so many tokens more; `others`: columns of the message that are not so."""
    size = len(columns.ends)
    message = Generated(
        tuple(columns.groups), tuple(columns.members), tuple(columns.attempts), tuple(columns.ends),
        (count,) * size, (3,) * size, ("",) * size,
    )  # fmt: skip
    return replace(message, **others)


def hear(columns: Columns, message: Generated, now: float) -> None:
    lead = columns.lead(message, (3, None))
    assert lead is not None
    columns.ends, columns.heard_at = lead.ends, now


def test_a_trajectory_takes_over_what_was_told_when_somebody_looks():
    columns = lined_up(5, 6, 7)
    members = [given.member for given in columns.given]
    hear(columns, report(columns, 2), 1.0)
    members[1].since, members[1].is_called_back = 1.5, True
    hear(columns, report(columns, 4), 2.0)
    assert [m.response_tokens for m in members] == [11, 12, 13] == [m.reported for m in members]
    assert [m.segments for m in members] == [[(1, 3, 11)], [(1, 3, 12)], [(1, 3, 13)]]
    assert [m.since for m in members] == [2.0, 1.5, 2.0]


def test_one_that_leaves_keeps_what_it_has_and_the_others_keep_their_places():
    columns = lined_up(5, 6, 7, 8)
    first, second, third, fourth = columns.given
    hear(columns, report(columns, 1), 1.0)
    second.leave()
    third.member.response_tokens += 0
    hear(columns, report(columns, 10), 2.0)
    assert [one.reported for one in (first, second, third, fourth)] == [16, 7, 8, 19]
    assert [one.member.response_tokens for one in (first, second, third, fourth)] == [16, 7, 8, 19]
    assert [one.member.since for one in (second, fourth)] == [1.0, 2.0]
    columns.clear()
    assert (first.reported, fourth.known, columns.ends) == (16, 19, [])


@pytest.mark.parametrize(
    "others",
    [
        {"starts": (5, 7)},
        {"members": (1, 0)},
        {"groups": (7, 8)},
        {"attempts": (1, 2)},
        {"counts": (1, 0)},
        {"counts": (1, 1995)},
        {"policy_versions": (3, 4)},
        {"endings": ("", "stop")},
    ],
)
def test_only_what_goes_on_as_it_is_known_leads(others):
    columns = lined_up(5, 6)
    assert columns.lead(report(columns, 1, **others), (3, None)) is None
    assert columns.lead(report(columns, 1), (4, None)) is None
    found = columns.lead(report(columns, 1), (4, 3))
    assert found is not None
    assert (found.deltas, found.ends, found.due) == (2, [6, 7], [])


def test_those_whose_prediction_is_due_are_named():
    columns = lined_up(5, 999, 998)
    found = columns.lead(report(columns, 1), (3,))
    assert found is not None
    assert found.due == [1]


def test_nothing_lags_behind_what_was_settled():
    columns = lined_up(5, 6)
    hear(columns, report(columns, 2), 1.0)
    columns.settle()
    assert [given.member._response_tokens for given in columns.given] == [7, 8]
