"""The deadline in a group's life is the one that the ledger gave it, and the moment at which it passed."""

import pytest

from controller.config.models import Config
from controller.core.commands import Forget
from controller.core.events import Received
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history.compare_strategies import other_config
from controller.view.past.life import as_json
from controller.view.pictures import group_of
from protocol.errors import RunError
from protocol.messages import TrainStepFinished
from tests.support.shown_run import CONFIG, recorded
from tests.support.whole_life import life_of

GROUPS = (0, 3, 9, 14)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("life") / "run")


def test_the_last_batch_that_may_take_a_group_is_the_ledgers_and_is_made_when_the_trainer_says_so(path):
    recording = Recording(path)
    core, due, made = recording.make_core(), {}, {}
    for turn in turns(recording, core):
        due |= {group: core.state.ledger.deadline(group) for group in GROUPS if group in core.state.ledger}
        event = turn.recorded.event
        if isinstance(event, Received) and isinstance(event.message, TrainStepFinished):
            made[event.message.policy_version] = turn.recorded.now
    for group in GROUPS:
        life = life_of(recording, group)
        assert life.due == due[group]
        assert life.due_s == made[life.due + 1]
        assert as_json(life)["due"] == due[group]


def test_a_deadline_that_has_not_passed_has_no_second_and_a_group_that_never_started_has_none(path):
    recording = Recording(path)
    last = recording.last
    number = next(
        recorded.number
        for recorded in recording.events()
        if isinstance(recorded.event, Received) and isinstance(recorded.event.message, TrainStepFinished)
    )
    recording.last = number  # as it was then, after the first step
    life = life_of(recording, 0)
    assert life.due is not None
    assert life.due_s is None
    recording.last = last
    core = recording.make_core()
    for _ in turns(recording, core):
        pass
    waiting = [group.id for group in core.state.groups.values() if group.state == "waiting"]
    assert waiting, CONFIG
    assert life_of(recording, waiting[-1]).due is None


@pytest.mark.parametrize(("strategy", "has_deadlines"), [("areal", False), ("prime_rl", True)])
def test_a_group_has_a_deadline_only_where_the_ledger_keeps_the_bound(tmp_path, strategy, has_deadlines):
    path = recorded(tmp_path / "run", other_config(CONFIG, strategy, []))
    recording, standing = Recording(path), []
    core = recording.make_core()
    for _ in turns(recording, core):
        if 9 in core.state.ledger:
            standing.append(group_of(core, 9))
            assert bool(core.snapshot().due_counts) == has_deadlines
    life = life_of(recording, 9)
    assert (life.due is not None) == has_deadlines
    assert standing
    assert all((one["due"] is not None) == has_deadlines for one in standing)
    began = [line for line in life.lines if "began at version" in line]
    assert began
    assert all(("due in version" in line) == has_deadlines for line in began)


def test_what_ran_on_a_worker_that_was_lost_ends_when_that_is_known(tmp_path):
    tree = CONFIG.model_dump(mode="json")
    tree["simulation"]["faults"]["rollout_kills"] = 0.2
    tree["controller"]["respawns"] = 1000
    recording = Recording(recorded(tmp_path / "run", Config.model_validate(tree, strict=False)))
    core, gone = recording.make_core(), set()
    for turn in turns(recording, core):
        gone |= {turn.recorded.now for command in turn.commands if isinstance(command, Forget)}
    bars = [bar for group in range(16) for bar in life_of(recording, group).bars]
    lost = [bar for bar in bars if bar.ending == "lost"]
    assert lost
    assert {bar.end_s for bar in lost} <= gone
    assert all(bar.end_s is not None for bar in bars), "the run is over"


def test_a_group_that_was_never_read_is_refused_before_a_core_is_made_for_it(path, monkeypatch):
    recording, made = Recording(path), []
    monkeypatch.setattr(recording, "make_core", lambda *words: made.append(words))
    with pytest.raises(RunError, match="names group 1000000"):
        life_of(recording, 10**6)
    assert not made
