"""A run that goes back keeps no snapshot and no sample of what it has undone."""

from controller.core.decisions.placement.dispatch import Dispatch
from controller.durability.recording import Recording
from controller.durability.snapshots import Snapshots
from controller.durability.violation import violation_of
from tests.simulation.test_going_back import STEPS, Story, breaks_on_a_score


def test_no_snapshot_of_what_is_undone_is_kept(tmp_path, monkeypatch):
    """One was taken while the run stood still, before the time of grace was over."""
    run_dispatch = Dispatch.run
    monkeypatch.setattr(Dispatch, "run", lambda self: self.state.epoch > 1 and run_dispatch(self))
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: violation_of(run.core, is_strict=True) is not None)
    with run.store.transaction():
        run.stepper.write_rest()
        Snapshots(run.store, is_compact=False).take(run.core, number=run.stepper.last, now=run.now)
    run.run(until=lambda: violation_of(run.core) is not None)
    story.end_broken(run)
    again = story.begin()
    again.run(until=lambda: again.core.state.steps == 1)
    again.close()  # before it has taken a snapshot
    last = story.begin()
    assert last.core.state.steps == 1
    last.run()
    story.check_whole(last)


def test_samples_of_undone_steps_are_not_kept(tmp_path, monkeypatch):
    breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps >= 3)
    story.end_broken(run)
    with Recording(story.path) as recording:
        assert {step for step, _ in recording.sample_keys()} == {1, 2, 3}
    again = story.begin()
    steps = again.core.state.steps
    assert {step for step, _ in Recording.live(again.store).sample_keys()} == set(range(1, steps + 1))
    again.run()
    story.check_whole(again)
    with Recording(story.path) as recording:
        found = recording.sample_keys()
    assert {step for step, _ in found} == set(range(1, STEPS + 1))
    assert not [(step, group) for step, group in found if group not in story.disk.batches[step - 1]]
