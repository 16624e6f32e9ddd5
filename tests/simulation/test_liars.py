"""Each lie of `lies`, told in a run of scripted workers: the liar is closed, the others go on."""

from collections import Counter
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.messages import Role
from tests.support.lies import LIES
from tests.support.lying import Liar, Lie
from tests.support.scripted import Disk, Scripted
from tests.support.scripted_run import Make, ScriptedRun, config_of, honest, trained_groups

STEPS = 3
NOWHERE = Path("/nowhere/run.db")
NAMES: dict[Role, str] = {"rollout": "node", "reward": "judge", "trainer": "trainer"}


def named(lie: Lie) -> str:
    return f"{lie.role}: {lie.name}"


def with_liar(config: Config, disk: Disk, lie: Lie, made: list[Liar]) -> Make:
    """The first worker called `liar` tells the lie."""
    make = honest(config, disk)

    def make_one(name: str, role: Role) -> Scripted:
        worker = make(name, role)
        if name != "liar" or made:
            return worker
        made.append(Liar(worker, lie))
        return made[0]

    return make_one


def began(run: ScriptedRun, lie: Lie, *, is_alone: bool) -> ScriptedRun:
    """One worker of each role, and the liar; where it is alone, it has a role for itself."""
    run.attach("liar", lie.role)
    for role, name in NAMES.items():
        if role != lie.role or not (is_alone or role == "trainer"):
            run.attach(name, role)
    return run


def is_closed(run: ScriptedRun) -> bool:
    return any("liar was closed: " in text for text in run.warnings)


def check_the_end(run: ScriptedRun, disk: Disk) -> None:
    """All steps are made, each prompt once, and the journal gives the same again."""
    assert run.end is not None
    assert run.end.is_success, run.end.reason
    assert trained_groups(disk) == list(range(2 * STEPS))
    assert run.core.summary()["staleness/violations"] == 0
    assert run.core.state.accounts.counts["peers/faulted"] == 1
    with run.store.transaction():
        run.stepper.write_rest()
    recording = Recording.live(run.store)
    assert replay(recording).is_equal
    assert not recording.skipped  # the door has seen it, not the net behind it


def test_there_are_forty_kinds_of_lies_for_each_role():
    assert all(count >= 40 for count in Counter(lie.role for lie in LIES).values())
    assert len(set(map(named, LIES))) == len(LIES)


def some(stride: int, *, but: str = "") -> list[object]:
    """All lies, or all but one; of them one in `stride` by default, the others in the thorough tests."""
    return [
        pytest.param(lie, marks=() if place % stride == 0 else pytest.mark.thorough, id=named(lie))
        for place, lie in enumerate(LIES)
        if lie.name != but
    ]


@pytest.mark.parametrize("lie", some(4))
def test_a_liar_is_closed_by_name_and_the_run_goes_on_with_the_others(lie):
    config, disk, made = config_of(steps=STEPS), Disk(), list[Liar]()
    run = ScriptedRun(NOWHERE, config, with_liar(config, disk, lie, made), durability="off")
    began(run, lie, is_alone=False)
    if lie.role == "trainer":  # a run has one: another comes when it is gone
        run.run(until=lambda: is_closed(run))
        run.attach("honest", "trainer")
    run.run()
    assert made[0].has_lied
    assert is_closed(run), run.warnings
    check_the_end(run, disk)


@pytest.mark.parametrize("lie", some(11, but="the response of another instance"))
def test_without_another_worker_of_its_role_the_run_ends_and_is_taken_up_with_nothing_lost(tmp_path, lie):
    config, disk, made = config_of(steps=STEPS), Disk(), list[Liar]()
    run = ScriptedRun(tmp_path / "run.db", config, with_liar(config, disk, lie, made))
    began(run, lie, is_alone=True).run(until=lambda: is_closed(run))
    lied_s = run.now
    run.run()
    run.close()
    assert run.end is not None
    assert not run.end.is_success
    assert "liar was closed: " in run.end.reason
    assert run.now - lied_s <= 60
    again = ScriptedRun(tmp_path / "run.db", config, honest(config, disk))
    for role, name in NAMES.items():
        again.attach(name, role)
    again.run()
    check_the_end(again, disk)
