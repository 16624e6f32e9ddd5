"""Lanes of workers: exclusive states whose seconds are the core's own."""

from itertools import pairwise

import pytest

from controller.core.events import Received
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history.story import Beginning, about, story
from controller.view.past.timeline import BINS, KINDS, MOST_LANES, NUMBERS, Lane, Timeline, picture, shares
from protocol import messages
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "run"
    record(path, CONFIG)
    with Recording(path) as found:
        yield found


@pytest.fixture(scope="module")
def told(recording):
    core = recording.make_core()
    timeline = Timeline(core)
    for turn in turns(recording, core):
        timeline.take(turn, core)
    return timeline, core


def test_the_trainers_lane_is_what_the_accounts_say_the_steps_waited_for(told):
    timeline, core = told
    found = shares(timeline.lanes(), 0.0, timeline.until_s)["trainer"]
    spent = core.state.accounts.spent_s
    named = {
        ("training" if kind == "training" else kind.removeprefix("waits: ")): s for kind, s in found.items()
    }
    for cause in spent.keys() | named.keys():
        if cause not in ("start-up", "gone"):  # before there is a trainer there is no lane
            assert named.get(cause, 0.0) == pytest.approx(spent.get(cause, 0.0), abs=1e-6), cause


def test_instances_pull_exactly_while_the_core_waits_for_their_pulls(told, recording):
    timeline, _ = told
    pulls = {}
    core = recording.make_core()
    for turn in turns(recording, core):
        event = turn.recorded.event
        for command in turn.commands:
            if isinstance(getattr(command, "message", None), messages.Pull):
                pulls.setdefault(command.peer, []).append([turn.recorded.now, None])
        if isinstance(event, Received) and isinstance(event.message, messages.Pulled):
            pulls[event.peer][-1][1] = turn.recorded.now
    expected = sum((end or timeline.until_s) - begin for spans in pulls.values() for begin, end in spans)
    found = shares(timeline.lanes(), 0.0, timeline.until_s)["rollout"]
    assert expected > 0
    assert found["pulling"] == pytest.approx(expected, abs=1e-6)


def test_every_lane_is_whole_and_in_order(told):
    timeline, _ = told
    assert [lane.name for lane in timeline.lanes()] == ["trainer", "rollout-0", "rollout-1", "reward-0"]
    for lane in timeline.lanes():
        begins = list(lane.begins)
        assert begins == sorted(set(begins)), "a state that held for no time is none"
        pairs = list(zip(lane.kinds, lane.details, strict=True))
        assert all(one != other for one, other in pairwise(pairs)), "one state, one span"
        seconds = shares([lane], 0.0, timeline.until_s)[lane.role]
        assert sum(seconds.values()) == pytest.approx(timeline.until_s - begins[0])


def test_bins_have_the_seconds_of_the_spans(told):
    timeline, _ = told
    lane = Lane("rollout-0", "rollout")
    for number in range(2_000):
        lane.enter(number * 0.5, ("generating", "pulling", "idle: cap")[number % 3], number)
    timeline = Timeline.__new__(Timeline)
    timeline.until_s, timeline.versions = 1_000.0, []
    timeline._lanes = {("rollout", "rollout-0"): lane}
    whole = picture(timeline, 0.0, 1_000.0)["lanes"][0]
    assert len(whole["bins"]) == BINS
    assert "spans" not in whole
    narrow = picture(timeline, 100.0, 101.0)["lanes"][0]
    assert narrow["spans"] == [
        (100.0, 100.5, NUMBERS["idle: cap"], 200),
        (100.5, 101.0, NUMBERS["generating"], 201),
    ]
    found = shares([lane], 0.0, 999.0)["rollout"]
    assert found == pytest.approx({"generating": 333.0, "pulling": 333.0, "idle: cap": 333.0})


def test_a_large_fleet_is_told_as_shares_and_found_by_name():
    timeline = Timeline.__new__(Timeline)
    timeline.until_s, timeline.versions = 10.0, [(1.0, 0)]
    timeline._lanes = {}
    for number in range(200):
        lane = timeline._lanes["rollout", f"rollout-{number}"] = Lane(f"rollout-{number}", "rollout")
        lane.enter(0.0, "starting")
        lane.enter(5.0, "generating" if number % 4 else "idle: bound", 0)
    found = picture(timeline, 0.0, 10.0)
    assert found["count"] == 200
    assert len(found["lanes"]) == MOST_LANES
    last = dict(zip(KINDS, found["fleet"]["rollout"][-1], strict=True))
    assert last["generating"] == pytest.approx(150, abs=0.5)
    assert last["idle: bound"] == pytest.approx(50, abs=0.5)
    narrowed = picture(timeline, 0.0, 10.0, wanted="rollout-19")
    assert [lane["name"] for lane in narrowed["lanes"]][:2] == ["rollout-19", "rollout-190"]
    assert narrowed["fleet"] is None


def test_the_last_word_on_each_group_is_known(told, recording):
    timeline, _ = told
    expected = {}
    for recorded in recording.events():
        for group in range(400):
            if isinstance(recorded.event, Received) and any(about(recorded.event.message, group)):
                expected[group] = recorded.number
    assert len(expected) > 10
    assert {group: timeline.last_word(group) for group in expected} == expected
    assert timeline.last_word(10**6) is None


def test_a_story_that_knows_where_it_ends_is_the_same(told, recording):
    timeline, _ = told
    for group in (0, 3, 9):
        start = Beginning(recording.make_core(), 0, {}, timeline.last_word(group))
        assert list(story(recording, group, begin=start)) == list(story(recording, group))
