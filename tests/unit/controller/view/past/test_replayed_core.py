"""Time travel: the core at any event is the core that was there."""

import random
import shutil
import zlib
from hashlib import blake2b

import pytest

from controller.config.models import Config
from controller.core.core import Core
from controller.durability.fingerprint import fingerprint
from controller.durability.image.freezer import Freezer
from controller.durability.recording import Recording
from controller.durability.replay import CoreFailed, turns
from controller.view.past import replayed_core
from controller.view.past.replayed_core import BYTES_AN_EVENT, ReplayedCore, StillReading
from tests.support.recorded_run import record
from tests.support.shown_run import shorten

CONFIG = Config.model_validate(
    {
        "run": {"steps": 6},
        "rollout": {"instances": 3, "group_size": 4, "max_response_tokens": 128},
        "trainer": {"batch_groups": 4},
        "staleness": {"max_staleness": 1},
    }
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("replayed") / "run"
    record(path, CONFIG, snapshot_every=150)
    with Recording(path) as found:
        yield found


@pytest.fixture(scope="module")
def truth(recording):
    """A digest of the whole core after every event, out of one pass."""
    core, found = recording.make_core(), {}
    for turn in turns(recording, core):
        found[turn.recorded.number] = digest(Freezer().freeze(core))
    return found


def digest(image):
    return blake2b(image, digest_size=8).digest()


def test_the_state_at_random_events_is_that_of_one_pass(recording, truth):
    replayed, dice = ReplayedCore(recording, spacing=97), random.Random(4)
    for number in [dice.randint(1, recording.last) for _ in range(40)]:
        assert replayed.at(number).number == number
        assert digest(replayed.image()) == truth[number], f"event {number}"


@pytest.mark.parametrize("search", ["decision_after", "decision_before"])
def test_a_search_that_is_cut_short_goes_on_where_it_was(recording, search, monkeypatch):
    monkeypatch.setattr(replayed_core, "NEAR", 1)
    plain, hurried = (getattr(ReplayedCore(recording), search) for _ in range(2))
    most = 0
    for number in range(1, recording.last, 7):
        asked, reached = 0, []
        while True:
            try:
                found = hurried(number, lambda: True)
                break
            except StillReading as way:
                asked, reached = asked + 1, [*reached, way.number]
        assert found.number == plain(number).number
        assert reached == sorted(set(reached), reverse=search == "decision_before")
        most = max(most, asked)
    assert most > 2, "some lie far"


def test_it_steps_back_as_well_as_forward(recording, truth):
    replayed = ReplayedCore(recording, spacing=50)
    replayed.at(recording.last)
    for number in range(recording.last - 1, recording.last - 6, -1):
        assert replayed.back().number == number
        assert digest(replayed.image()) == truth[number]
    assert replayed.forward(3).number == recording.last - 2
    assert digest(replayed.image()) == truth[recording.last - 2]


def test_what_an_event_gave_is_what_the_journal_says(recording):
    replayed = ReplayedCore(recording)
    for number in (recording.last // 2, recording.last // 3, 1):
        turn = replayed.with_turn(number).turn
        assert turn.recorded.number == number
        assert fingerprint(turn.commands) == turn.recorded.fingerprint


@pytest.mark.parametrize("goes_back", [True, False])
def test_what_an_event_gave_is_known_where_a_keyframe_stands_behind_it(recording, goes_back):
    number = recording.snapshot_numbers[-1]
    replayed = ReplayedCore(recording, spacing=50, goes_back=goes_back)
    turn = replayed.with_turn(number).turn
    assert turn is not None
    assert turn.recorded.number == number


def test_a_step_and_a_second_have_their_moments(recording):
    replayed = ReplayedCore(recording, spacing=100)
    for step in (4, 1, 6):
        moment = replayed.at_step(step)
        assert moment.core.state.steps == step
        assert replayed.back().core.state.steps == step - 1
    half = recording.until_s / 2
    moment = replayed.at_time(half)
    assert moment.now <= half
    assert replayed.forward().now > half
    assert replayed.at_step(99).number == recording.last
    assert replayed.at(-5).number == replayed.first == 0
    assert replayed.at(10**9).number == recording.last


def test_keyframes_keep_to_their_room_at_growing_distance(recording, truth):
    replayed = ReplayedCore(recording, spacing=10)
    replayed.at_step(99)  # all of it, from the beginning
    room = len(zlib.compress(replayed.image(), 1)) * 2  # images are kept compressed, what is alike once
    small = ReplayedCore(recording, keyframes_bytes=room, spacing=10)
    small.at_step(99)
    assert 2 <= len(small.keyframes.numbers) < len(replayed.keyframes.numbers) / 2
    assert small.keyframes.size <= room
    small.at(recording.last // 2)
    assert digest(small.image()) == truth[recording.last // 2]


def test_a_snapshot_of_the_run_saves_the_steps_before_it(recording):
    numbers = recording.snapshot_numbers
    assert numbers
    replayed = ReplayedCore(recording, spacing=10**9)
    read = []
    recording._on_progress = lambda number, last: read.append(number)
    replayed.at(numbers[-1] + 1)
    recording._on_progress = lambda number, last: None
    assert read == [numbers[-1]]


def test_a_snapshot_of_another_release_is_passed_over(recording, truth, monkeypatch):
    replayed = ReplayedCore(recording, spacing=10**9)
    monkeypatch.setattr(recording, "snapshot", lambda number=None: None)
    number = recording.snapshot_numbers[-1] + 1
    replayed.at(number)
    assert digest(replayed.image()) == truth[number]


def test_one_step_back_after_another_does_not_read_the_history_again(recording, truth):
    replayed, stepped = ReplayedCore(recording, spacing=10**9), []
    take = replayed._take
    replayed._take = lambda turn: (stepped.append(turn.recorded.number), take(turn))
    replayed.at(140)
    replayed.back()
    stepped.clear()
    for number in range(138, 120, -1):
        assert replayed.back().number == number
        assert digest(replayed.image()) == truth[number]
    assert len(stepped) < 18 * 40


def test_one_that_follows_the_newest_event_makes_no_images_on_its_way(tmp_path):
    record(tmp_path / "run", CONFIG)
    with Recording(tmp_path / "run") as recording:
        replayed = ReplayedCore(recording, spacing=10, goes_back=False)
        replayed.at(recording.last)
        assert replayed.keyframes.numbers == [replayed.first]
        replayed = ReplayedCore(recording, spacing=10)
        replayed.at(recording.last)
        assert len(replayed.keyframes.numbers) > 5


def test_one_that_follows_takes_up_a_snapshot_only_where_stepping_takes_longer(recording, truth, monkeypatch):
    number, taken, read = recording.snapshot_numbers[-1], [], Recording.snapshot
    assert recording.snapshot_bytes(number) > recording.snapshot_bytes(number + 1) == 0
    monkeypatch.setattr(recording, "snapshot", lambda one: taken.append(one) or read(recording, one))
    follower = ReplayedCore(recording, keyframes_bytes=1, goes_back=False)
    for events, expected in ((50, []), (49, [number])):
        follower.at(number - 50)
        taken.clear()
        monkeypatch.setattr(recording, "snapshot_bytes", lambda one, size=events: size * BYTES_AN_EVENT)
        follower.at(number + 1)
        assert taken == expected
        assert digest(follower.image()) == truth[number + 1]


@pytest.mark.parametrize("behind", [1, 10, 140])
def test_one_that_stands_where_a_compact_run_has_deleted_goes_on_behind_that(
    recording, truth, tmp_path, behind
):
    number = recording.snapshot_numbers[-1]
    shutil.copy(recording.path, tmp_path)
    before = Recording(tmp_path)
    follower, jumper = (
        ReplayedCore(before, keyframes_bytes=1, goes_back=False),
        ReplayedCore(before, spacing=40),
    )
    follower.at(number - behind)
    for step in (1, 2):
        jumper.at_step(step)
    assert jumper._known < number
    shorten(tmp_path, number)
    after = Recording(tmp_path)
    assert after.pruned == number < after.last
    follower.read_on(after)
    assert digest_at(follower, number + 5) == truth[number + 5]
    jumper.read_on(after)
    assert jumper.at_step(6).number == ReplayedCore(recording).at_step(6).number
    assert digest(jumper.image()) == truth[jumper.here.number]
    assert jumper.at_step(2).number == number, "it was deleted: the first moment"
    assert jumper.at_step(3).number == number


def digest_at(replayed, number):
    replayed.at(number)
    return digest(replayed.image())


def test_after_an_event_on_which_the_core_fails_the_moments_before_it_are_still_true(
    recording, truth, monkeypatch
):
    """It fails when it has changed something already, and the second time it would not."""
    fails, failures = recording.last - 40, []
    step = Core.step

    def stepped(core, now, event, **options):
        commands = step(core, now, event, **options)
        if core.state.events == fails and len(failures) < 2:
            failures.append(core)
            raise KeyError("looked up and removed")
        return commands

    monkeypatch.setattr(Core, "step", stepped)
    replayed = ReplayedCore(recording, spacing=50)
    for _ in range(2):
        with pytest.raises(CoreFailed):
            replayed.at(recording.last)
        assert replayed.at(fails - 1).number == fails - 1
        assert digest(replayed.image()) == truth[fails - 1]
    replayed.at(recording.last)
    assert digest(replayed.image()) == truth[recording.last]
