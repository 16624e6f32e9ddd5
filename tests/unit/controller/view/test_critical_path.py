"""Who the next batch waits for, and in how many seconds they are generated."""

import pytest

from controller.config.load import change_config
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history.compare_strategies import other_config
from controller.view.critical_path import awaited_groups, batch_left_s
from controller.view.pictures import ledger_of
from strategies.cost_model import prefill_s, step_latency
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("critical") / "run"
    record(path, CONFIG)
    return path


@pytest.mark.parametrize("strategy", ["areal", "verl_async", "roll_flash", "prime_rl", "nemo_rl"])
def test_where_no_place_is_reserved_one_column_has_all_groups_and_only_who_is_waited_for_is_due(
    tmp_path, strategy
):
    record(tmp_path / "run", other_config(CONFIG, strategy, []))
    most = due_later = 0
    for core in moments(tmp_path / "run", every=3):
        shown, ledger = ledger_of(core), core.state.ledger
        [column] = shown["columns"]
        assert len(column["groups"]) == ledger.reserved + ledger.occupied
        assert not shown["others"]
        due = {wait["group"] for wait in shown["waits"] if wait["is_due"]}
        assert due == set(ledger.blockers()), "what has ended first or begun first is taken"
        assert len(shown["waits"]) <= max(len(due), ledger.batch_groups - ledger.occupied, 0)
        most = max(most, len(column["groups"]))
        due_later += any(ledger.deadline(group) > ledger.train_version for group in due)
    assert most > CONFIG.trainer.batch_groups
    assert bool(due_later) == (strategy == "nemo_rl")


def test_a_batch_that_waits_for_no_straggler_has_nobody_who_is_due(tmp_path):
    record(tmp_path / "run", change_config(CONFIG, ["staleness.spare_groups=2"]))
    looks = [core for core in moments(tmp_path / "run", every=3) if core.state.ledger.blockers()]
    assert looks
    assert not any(wait.is_due for core in looks for wait in awaited_groups(core))


def moments(run, every=7):
    """The core at some moments of the run; to be looked at."""
    with Recording(run) as recording:
        core = recording.make_core()
        for turn in turns(recording, core):
            if turn.recorded.number % every == 0:
                yield core


def by_hand(core, group):
    """Seconds until its last response is there; all of them run somewhere."""
    lefts = []
    for member in group.members:
        if member.state == "running":
            where = core.state.registry.workers[member.peer]
            fit, count = where.fit.coefficients, len(where.running)
            left_s = step_latency(fit, count, where.resident_tokens) * max(
                0, core.state.expected_tokens(group, member) - member.response_tokens
            )
            if where.pulling is not None:
                left_s += max(0.0, where.pull_s - (core.state.now - where.told.pulling.since))
                left_s += count * prefill_s(fit, where.resident_tokens / count)
            if not member.response_tokens:
                left_s += prefill_s(fit, group.prompt_tokens)
            lefts.append(left_s)
    return max(lefts)


def test_a_group_is_generated_when_its_last_response_is_at_the_pace_of_where_it_runs(run):
    seen, pulling = 0, 0
    for core in moments(run, every=3):
        for group, _, left_s in awaited_groups(core):
            states = {one.state for one in group.members}
            if group.state == "scoring":
                assert left_s == 0.0
            elif "running" in states and "queued" not in states:
                assert left_s == pytest.approx(by_hand(core, group))
                peers = {one.peer for one in group.members if one.peer}
                pulling += any(core.state.registry.workers[peer].pulling is not None for peer in peers)
                seen += 1
    assert seen > 20
    assert pulling > 5


def test_nobody_predicts_an_environment_or_when_the_device_changes_hands(run):
    core = next(core for core in moments(run) if any(one.left_s for one in awaited_groups(core)))
    core.state.config = core.state.config.model_copy(update={"placement": "colocated"})
    assert core.state.config.is_colocated
    generating = [one for one in awaited_groups(core) if one.group.state == "generating"]
    assert {one.left_s for one in generating} == {None}


def test_the_batch_is_there_when_its_last_group_is_and_nobody_knows_before_all_have_started(run):
    known = unknown = 0
    for core in moments(run):
        shown, awaited = ledger_of(core), awaited_groups(core)
        lefts = [one.left_s for one in awaited]
        assert [wait["left_s"] for wait in shown["waits"]] == lefts
        if core.state.ledger.batch_groups - core.state.ledger.occupied > len(awaited) or None in lefts:
            assert shown["left_s"] is None
            unknown += 1
        else:
            assert shown["left_s"] == max(lefts, default=0.0)
            known += 1
    assert known > 10
    assert unknown


def test_what_is_not_known_of_an_instance_is_not_made_up(run):
    core = next(core for core in moments(run) if any(one.left_s for one in awaited_groups(core)))
    for instance in core.state.registry.instances():
        instance.fit = None
    awaited = awaited_groups(core)
    assert {one.left_s for one in awaited if one.group.state == "generating"} == {None}
    assert batch_left_s(core, awaited) is None
    staleness = core.state.config.staleness.model_copy(update={"cost_model": "a profile"})
    core.state.config = core.state.config.model_copy(update={"staleness": staleness})
    assert all(one.left_s is not None for one in awaited_groups(core)), "a profile that is given counts"
