"""A core that breaks an invariant: the next controller finds the event at fault, and goes on without it."""

import pytest

from controller.core.core import Core
from controller.core.decisions.placement.dispatch import Dispatch
from controller.core.decisions.supply.scoring import Scoring
from controller.core.decisions.workers.membership import Membership
from controller.core.events import PeerFaulted, PromptsRead, Received
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack
from controller.durability.recording import Recording
from controller.durability.release import RELEASES
from controller.durability.replay import replay
from controller.durability.violation import BrokenInvariant, violation_of
from controller.host.going_back import leave_word
from protocol.errors import RunError
from protocol.ids import TrajectoryId
from protocol.messages import CheckpointSaved, GroupScored, response_pieces
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest, trained_groups

STEPS = 5
GROUP = 1  # of the first batch


class Unchecked(ScriptedRun):
    """Nobody looks at the core but the test, as a real run does for up to a minute."""

    def look_over(self) -> None:
        """Later."""


def breaks_on_a_score(monkeypatch, *, attempts) -> list[int]:
    """The token ledger does not close after a score of GROUP; returns the steps that were made by then."""
    on_scored, steps = Scoring.on_scored, list[int]()

    def scored(self, worker, message):
        on_scored(self, worker, message)
        if message.group == GROUP and message.attempt in attempts:
            self.state.accounts.generated += 1
            steps.append(self.state.steps)

    monkeypatch.setattr(Scoring, "on_scored", scored)
    return steps


def fails_when_broken(monkeypatch) -> None:
    """A broken core raises at a score of GROUP."""
    absorb = Core._absorb

    def absorbed(self, event):
        is_score = isinstance(event, Received) and isinstance(event.message, GroupScored)
        if is_score and event.message.group == GROUP and violation_of(self) is not None:
            raise ZeroDivisionError("a bug")
        absorb(self, event)

    monkeypatch.setattr(Core, "_absorb", absorbed)


class Story:
    """One run in a folder, from controller to controller."""

    def __init__(self, folder, **sections) -> None:
        self.path, self.disk = folder / "run.db", Disk()
        self.config = config_of(steps=STEPS, is_local=True, **sections)

    def begin(self) -> Unchecked:
        """The next controller; the trainer finds the checkpoints that it left in place."""
        run = Unchecked(self.path, self.config, self._make)
        self.disk.checkpoint = max((int(path.name[5:]) for path in self._checkpoints()), default=0)
        steps = run.core.state.steps
        self.disk.batches = {version: g for version, g in self.disk.batches.items() if version < steps}
        return run

    def _checkpoints(self):
        return self.path.parent.glob("checkpoints/step_*")

    def _make(self, name, role):
        worker = honest(self.config, self.disk)(name, role)
        if role == "trainer":
            answer = worker.answer

            def saves(message, frames):
                said = answer(message, frames)
                for word, _ in said:
                    if isinstance(word, CheckpointSaved):
                        (self.path.parent / f"checkpoints/step_{word.policy_version}").mkdir(parents=True)
                return said

            worker.answer = saves
        return worker

    def run_until_broken(self) -> None:
        """A controller whose core breaks an invariant, up to its end."""
        run = self.begin()
        run.run(until=lambda: violation_of(run.core) is not None)
        self.end_broken(run)

    def end_broken(self, run: Unchecked) -> None:
        """The check comes to its result, and the controller ends."""
        found = violation_of(run.core)
        assert found is not None
        with run.store.transaction():
            leave_word(run.store, run.stepper, BrokenInvariant(found.words, run.stepper.last))
        run.store.close()

    def check_whole(self, run: Unchecked) -> None:
        """It has ended well, nothing is trained twice, and the journal gives it again."""
        run.close()
        assert run.end is not None
        assert run.end.is_success, run.end.reason
        run.core.check()
        assert len(self.disk.batches) == STEPS
        trained_groups(self.disk)
        with Recording(self.path) as recording:
            verdict = replay(recording)
        assert verdict.is_equal
        assert verdict.finished
        assert verdict.steps == STEPS

    def events(self):
        with Recording(self.path) as recording:
            return list(recording.events()), recording.skipped


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_run_goes_back_to_before_the_event_at_fault_and_leaves_it_out(
    tmp_path, monkeypatch, steps, is_told
):
    at = breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps >= steps and violation_of(run.core) is not None)
    last = run.stepper.last
    checkpoints = sorted(path.name for path in story._checkpoints())
    if is_told:
        story.end_broken(run)
    else:  # it is killed before the check is through
        run.store.close()
    before, _ = story.events()
    said = [one for one in before if isinstance(one.event, Received)]
    scores = [one for one in said if isinstance(one.event.message, GroupScored)]
    (at_fault,) = [one for one in scores if one.event.message.group == GROUP]
    again = story.begin()
    assert again.core.state.steps == at[0] <= 1
    assert again.core.state.groups[GROUP].state == "scoring"
    assert violation_of(again.core, is_strict=True) is None
    after, skipped = story.events()
    assert [r.number for r in after] == list(range(1, at_fault.number))
    assert skipped[at_fault.number].startswith(
        "After GroupScored of reward-0 the core broke an invariant: the"
    )
    assert set(skipped) == set(range(at_fault.number, last + 1))
    assert [number for number, reason in skipped.items() if reason] == [at_fault.number]
    assert not list(story._checkpoints())
    undone = sorted(path.name for path in (tmp_path / "checkpoints").glob("*")) if checkpoints else []
    assert undone == [f"undone_{name}" for name in checkpoints]
    again.run()
    story.check_whole(again)
    after, _ = story.events()
    (fault,) = [r.event for r in after if isinstance(r.event, PeerFaulted)]
    assert fault.peer == at_fault.event.peer
    assert "broke an invariant" in fault.reason


def test_an_invariant_that_breaks_again_ends_the_run_in_words_with_the_traceback(tmp_path, monkeypatch):
    breaks_on_a_score(monkeypatch, attempts={1, 2, 3})
    story = Story(tmp_path)
    for _ in range(2):
        run = story.begin()
        run.run(until=lambda run=run: violation_of(run.core) is not None)
        story.end_broken(run)
    for _ in range(2):  # as often as it is tried
        with pytest.raises(RunError, match="went back for it once, and it is broken again") as raised:
            story.begin()
        assert "the token ledger does not close" in str(raised.value)
        assert "Traceback (most recent call last)" in str(raised.value)


def test_what_was_dropped_since_the_last_check_is_there_when_the_run_goes_back(tmp_path, monkeypatch):
    """The batch of the event at fault was trained, and a checkpoint covered it."""
    breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path, trainer={"checkpoint_steps": 1, "keep_checkpoints": 1})
    run = story.begin()
    run.run(until=lambda: run.core.state.steps >= 3)
    assert run.core.training.trainer_batches.saved_version >= 2
    story.end_broken(run)
    again = story.begin()
    again.run()
    story.check_whole(again)


def test_no_token_that_came_behind_the_event_at_fault_is_kept(tmp_path, monkeypatch):
    breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps >= 3)
    story.end_broken(run)
    again = story.begin()
    counted = {
        (*member.id, attempt): sum(s.count for s in member.segments if s.attempt == attempt)
        for group in again.core.state.groups.values()
        for member in group.members
        for attempt in range(member.attempt + 1)
    }
    payload = again.store._payload
    held = {(group, *place): len(pair[0]) // 4 for group in again.core.state.groups
            for place, pair in payload._load(group).responses.items()}  # fmt: skip
    assert held
    assert held == {place: counted[place] for place in held}
    again.store.close()


def test_held_out_answers_that_are_to_be_a_sample_are_still_there(tmp_path, monkeypatch):
    on_scored, kept = Scoring.on_scored, list[int]()

    def scored(self, worker, message):
        found = self.evaluation.round
        worst = () if found is None else found.worst.groups
        on_scored(self, worker, message)
        if worst and self.state.epoch == 1:
            self.state.accounts.generated += 1
            kept[:] = kept or [one.group for one in worst]

    monkeypatch.setattr(Scoring, "on_scored", scored)
    held_out = {"every_steps": 1, "samples": 2, "threshold": 1.0, "data": {"set": {"path": "x"}}}
    story = Story(tmp_path, evaluation=held_out, samples={"held_out": 2})
    story.run_until_broken()
    again = story.begin()
    round_again = again.core.evaluation.round
    assert kept
    assert [one.group for one in round_again.worst.groups] == kept
    for one in round_again.worst.groups:
        for item in one.items:
            pieces = response_pieces("tokens", TrajectoryId(item.group, item.member), item.segments)
            assert all(again.store._payload.piece(piece) for piece in pieces)
    again.run()
    story.check_whole(again)


def test_an_event_that_nobody_said_is_left_out_too(tmp_path, monkeypatch):
    on_prompts = Scoring.on_prompts

    def read(self, event):
        on_prompts(self, event)
        if event.first_group and self.state.epoch == 1:
            self.state.accounts.generated += 1

    monkeypatch.setattr(Scoring, "on_prompts", read)
    story = Story(tmp_path, run={"steps": 40}, trainer={"batch_groups": 4})
    story.run_until_broken()
    again = story.begin()
    _, skipped = story.events()
    assert "After the event PromptsRead" in next(iter(skipped.values()))
    again.run(until=lambda: again.core.state.steps >= 30)
    again.core.check()
    again.close()
    after, _ = story.events()
    read_until = 0
    for one in after:
        if isinstance(one.event, PromptsRead):
            assert one.event.first_group == read_until
            read_until += one.event.count
    assert not [r for r in after if isinstance(r.event, PeerFaulted)]


def test_a_run_that_stands_still_goes_back_to_what_brought_it_there(tmp_path, monkeypatch):
    run_dispatch = Dispatch.run
    monkeypatch.setattr(Dispatch, "run", lambda self: self.state.epoch > 1 and run_dispatch(self))
    story = Story(tmp_path)
    story.run_until_broken()
    again = story.begin()
    _, skipped = story.events()
    assert "the run is stuck: " in next(iter(skipped.values()))
    assert "After Pulled of rollout-" in next(iter(skipped.values()))
    again.run()
    story.check_whole(again)


def test_a_word_on_which_the_broken_core_fails_is_left_out_for_good(tmp_path, monkeypatch):
    """The controller is killed before it can note that it passed the word over."""
    fails_when_broken(monkeypatch)
    breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: violation_of(run.core) is not None)
    (judge,) = [peer for peer, worker in run.workers.items() if worker.role == "reward"]
    with run.store.transaction():
        run.stepper.write_rest()
        word = GroupScored(GROUP, 1, (0.0, 1.0))
        run.store.append_events(run.now, [(Received(judge, word), False)])
    last = run.store.last_event
    run.store.close()
    again = story.begin()
    again.run(until=lambda: again.core.state.steps == 1)
    again.close()
    _, skipped = story.events()
    assert skipped[last] == ""
    third = story.begin()
    third.run()
    story.check_whole(third)


def test_the_event_that_begins_a_run_cannot_be_left_out(tmp_path, monkeypatch):
    start = Membership.start

    def broken(self):
        start(self)
        self.state.accounts.generated += 1

    monkeypatch.setattr(Membership, "start", broken)
    story = Story(tmp_path)
    story.run_until_broken()
    with pytest.raises(RunError, match="An event that begins a run cannot be left out"):
        story.begin()


@pytest.mark.parametrize("is_later", [False, True])
def test_a_release_with_more_invariants_undoes_nothing_that_another_found_whole(
    tmp_path, monkeypatch, is_later
):
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps == 2)
    image, number = pack(Freezer().freeze(run.core)), run.stepper.last
    run.run(until=lambda: run.core.state.steps == 4)
    with run.store.transaction():
        run.stepper.write_rest()
        run.store.put_snapshot(number, run.now, '{"sources": "other"}', image)
        run.store.put_fact(RELEASES, '[[1, {"sources": "other"}]]')
    run.store.close()
    steps = 3 if is_later else 1
    check = Core.check

    def stricter(core):
        check(core)
        if core.state.steps >= steps:
            raise AssertionError("more is asked for here")

    monkeypatch.setattr(Core, "check", stricter)
    if is_later:  # at most a minute of work, which no release has looked at
        assert story.begin().core.state.steps == 2
        return
    with pytest.raises(
        RunError, match=rf"more is asked .*sources other there.* whole up to event {number}\."
    ):
        story.begin()
    assert not story.events()[1]


def test_a_healed_core_of_another_release_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as bug:
        breaks_on_a_score(bug, attempts={1})
        story = Story(tmp_path)
        story.run_until_broken()
    again = story.begin()
    _, skipped = story.events()
    assert not skipped
    again.run()
    story.check_whole(again)
