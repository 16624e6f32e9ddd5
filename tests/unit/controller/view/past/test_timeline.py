"""Lanes of workers: exclusive states whose seconds are the core's own."""

from itertools import pairwise

import msgpack
import pytest

from controller.config.models import Config
from controller.core.events import HeldOutRead, Received
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history.story import Beginning, about, story
from controller.view.past.lanes import BESIDE, KINDS, NUMBERS, Lane, apart, shares, with_beside
from controller.view.past.timeline import Timeline
from controller.view.past.timeline_picture import BINS, MOST_LANES, picture
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
    return history_of(recording)


def history_of(recording):
    """What a pass over the whole history knows, and the core at its end."""
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


def seconds_beside(lane, what, until_s):
    """In which the lane says that this is done beside its state."""
    ends = [*lane.begins[1:], until_s]
    bit = 1 << BESIDE.index(what)
    spans = zip(lane.begins, ends, lane.details, strict=True)
    return sum(end - begin for begin, end, detail in spans if apart(detail)[1] & bit)


def between(recording, begins, ends):
    """Seconds from each message or command of one kind to the next of another."""
    core, since, found = recording.make_core(), None, 0.0
    for turn in turns(recording, core):
        told = [getattr(command, "message", None) for command in turn.commands]
        heard = getattr(turn.recorded.event, "message", None)
        if since is not None and isinstance(heard, ends):
            found, since = found + turn.recorded.now - since, None
        if since is None and any(isinstance(one, begins) for one in [heard, *told]):
            since = turn.recorded.now
    return found if since is None else found + recording.until_s - since


@pytest.mark.parametrize(
    ("what", "begins", "ends"),
    [
        ("publishing", messages.TrainStepFinished, messages.PolicyPublished),
        ("saving", messages.SaveCheckpoint, messages.CheckpointSaved),
    ],
)
def test_what_the_trainer_does_beside_lasts_from_its_beginning_to_its_end(tmp_path, what, begins, ends):
    simulation = CONFIG.simulation.model_copy(update={"publish_s": 0.25})
    record(tmp_path / "run", CONFIG.model_copy(update={"simulation": simulation}))
    recording = Recording(tmp_path / "run")
    core = recording.make_core()
    timeline, ready_s = Timeline(core), None
    for turn in turns(recording, core):
        timeline.take(turn, core)
        trainer = core.state.registry.trainer()
        if ready_s is None and trainer is not None and trainer.ready:
            ready_s = turn.recorded.now
    expected = between(recording, begins, ends)
    if what == "publishing":  # the first version is, too
        expected += timeline.versions[0][0] - ready_s
        assert expected > 0.9 * 0.25 * CONFIG.run.steps
    (lane,) = [lane for lane in timeline.lanes() if lane.role == "trainer"]
    assert expected > 0
    assert seconds_beside(lane, what, timeline.until_s) == pytest.approx(expected, abs=1e-6)


def test_an_instance_prefills_from_its_first_work_to_its_first_token(told, recording):
    timeline, _ = told
    for lane in timeline.lanes():
        if lane.role != "rollout":
            continue
        tokens = [
            recorded.now
            for recorded in recording.events()
            if isinstance(recorded.event, Received)
            and isinstance(recorded.event.message, messages.Generated)
            and timeline.names[recorded.event.peer] == lane.name
            and sum(recorded.event.message.counts)
        ]
        is_busy = [KINDS[kind] == "generating" for kind in lane.kinds]
        starts = [
            second for second, now, before in zip(lane.begins, is_busy, [False, *is_busy], strict=False)
            if now and not before
        ]  # fmt: skip
        stops = [*lane.begins, timeline.until_s]
        expected = 0.0
        for start in starts:
            stop = next(stops[place + 1] for place, second in enumerate(lane.begins) if second >= start
                        and not all(is_busy[place : place + 2]))  # fmt: skip
            expected += min([stop, *(now for now in tokens if now >= start)]) - start
        assert expected > 0
        assert seconds_beside(lane, "prefill", timeline.until_s) == pytest.approx(expected, abs=1e-6)


def test_what_is_done_beside_is_told_with_the_spans_and_leaves_the_version_as_it_is(told):
    timeline, _ = told
    found = picture(timeline, 0.0, timeline.until_s)
    assert found["beside"] == BESIDE
    for lane in found["lanes"]:
        assert len(lane["beside"]) == len(lane["spans"])
        assert all(-1 <= version <= 4 for _, _, _, version in lane["spans"])
    assert any(any(lane["beside"]) for lane in found["lanes"])
    assert apart(with_beside(7, "publishing", "ahead")) == (7, 0b1010)
    assert apart(-1) == (-1, 0)


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


def fleet_of(count, *, tokens):
    """Lanes that generate for the first half of ten seconds, each `tokens(number)` in it."""
    timeline = Timeline.__new__(Timeline)
    timeline.until_s, timeline.versions, timeline._lanes = 10.0, [], {}
    for number in range(count):
        lane = timeline._lanes["rollout", f"rollout-{number}"] = Lane(f"rollout-{number}", "rollout")
        lane.enter(0.0, "generating", 0)
        lane.generated = tokens(number)
        lane.enter(5.0, "idle: cap" if number % 2 else "pulling", 0)
    return timeline


def test_lanes_are_chosen_by_shares_of_what_is_shown_and_by_speed():
    timeline = fleet_of(100, tokens=lambda number: 1_000 - number)
    found = picture(timeline, 0.0, 10.0, wanted="idle>40%")
    assert (found["count"], found["refused"]) == (50, "")
    assert found["fleet"] is None
    assert picture(timeline, 0.0, 5.0, wanted="idle>40%")["count"] == 0
    slowest = picture(timeline, 0.0, 10.0, wanted="slowest 3")["lanes"]
    assert [(lane["name"], lane["speed"]) for lane in slowest] == [
        ("rollout-99", 180.2), ("rollout-98", 180.4), ("rollout-97", 180.6)
    ]  # fmt: skip
    (half,) = picture(timeline, 0.0, 2.5, wanted="rollout-99")["lanes"]
    assert half["speed"] == 180.2
    (idle,) = picture(timeline, 6.0, 9.0, wanted="rollout-99")["lanes"]
    assert idle["speed"] is None


def test_a_filter_that_makes_no_sense_leaves_nothing_out_and_says_so():
    found = picture(fleet_of(3, tokens=int), 0.0, 10.0, wanted="lazy>20%")
    assert found["count"] == 3
    assert "No lane is ever 'lazy'" in found["refused"]


def test_speeds_are_of_the_tokens_that_were_reported(told, recording):
    timeline, _ = told
    reported = {}
    for recorded in recording.events():
        event = recorded.event
        if isinstance(event, Received) and isinstance(event.message, messages.Generated):
            tokens = sum(delta.count for delta in event.message.deltas)
            reported[event.peer] = reported.get(event.peer, 0) + tokens
    by_name = {timeline.names[peer]: tokens for peer, tokens in reported.items()}
    seconds = shares(timeline.lanes(), 0.0, timeline.until_s)["rollout"]["generating"]
    found = picture(timeline, 0.0, timeline.until_s, wanted="rollout")["lanes"]
    lanes = {lane.name: lane for lane in timeline.lanes() if lane.role == "rollout"}
    assert {name: lane.generated for name, lane in lanes.items()} == by_name
    own = [shares([lane], 0.0, timeline.until_s)["rollout"]["generating"] for lane in lanes.values()]
    assert sum(own) == pytest.approx(seconds)
    for told_lane, held in zip(found, own, strict=True):
        assert told_lane["speed"] == pytest.approx(by_name[told_lane["name"]] / held, abs=0.01)


def test_a_span_of_generating_tells_the_mean_share_of_places_that_were_taken():
    lane = Lane("rollout-0", "rollout")
    for now, load, kind in (
        (0.0, 0.0, "starting"), (2.0, 1.0, "generating"), (3.0, 0.5, "generating"), (5.0, 0.0, "idle: cap"),
        (6.0, 0.25, "generating"),
    ):  # fmt: skip
        lane.carry(now, load)
        lane.enter(now, kind, 0)
    timeline = Timeline.__new__(Timeline)
    timeline.until_s, timeline.versions, timeline._lanes = 8.0, [], {("rollout", "rollout-0"): lane}
    (found,) = picture(timeline, 0.0, 8.0)["lanes"]
    assert found["loads"] == [None, pytest.approx(2 / 3, abs=0.01), None, 0.25]
    assert picture(timeline, 7.0, 7.5)["lanes"][0]["loads"] == [0.25]


def test_loads_are_those_of_the_core(told, recording):
    timeline, _ = told
    core, expected, before = recording.make_core(), {}, 0.0
    now_taken = {}
    for turn in turns(recording, core):
        for name, share in now_taken.items():
            expected[name] = expected.get(name, 0.0) + share * (turn.recorded.now - before)
        before = turn.recorded.now
        now_taken = {
            one.name: len(one.running) / max(1, one.capacity) for one in core.state.registry.instances()
        }
    for lane in timeline.lanes():
        if lane.role == "rollout":
            loaded = lane.loaded + lane.load * (timeline.until_s - lane.since_s)
            assert loaded == pytest.approx(expected[lane.name])


def test_where_each_evaluation_read_its_prompts_is_known(tmp_path):
    data = {"held": {"path": "x.jsonl", "max_prompts": 2}}
    evaluation = {"every_steps": 2, "data": data}
    record(tmp_path, Config.model_validate(CONFIG.model_dump() | {"evaluation": evaluation}))
    recording = Recording(tmp_path)
    timeline, core = history_of(recording)
    read = [one for one in recording.events() if isinstance(one.event, HeldOutRead)]
    assert len(read) > 1
    for recorded in read:
        for group in (recorded.event.first_group, recorded.event.first_group + 1):
            assert timeline.before(group) == recorded.number - 1
    plain = Timeline.of_plain(msgpack.unpackb(msgpack.packb(timeline.as_plain()), strict_map_key=False), core)
    assert plain.before(group) == read[-1].number - 1
    first = FIRST_EVALUATION_GROUP
    core = recording.make_core()
    for _ in turns(recording, core, until=timeline.before(first)):
        pass
    start = Beginning(core, timeline.before(first), dict(timeline.names))
    assert list(story(recording, first, begin=start)) == list(story(recording, first))
    assert timeline.before(first - 1) is None
