"""A broken core that fails on an event before anybody has checked it: the run goes back all the same."""

import pytest

from controller.core.core import Core
from controller.core.events import Received, Tick
from controller.durability.recording import Recording
from controller.durability.replay import CoreFailed
from controller.durability.violation import violation_of
from controller.host import going_back
from controller.host.going_back import gone_back, leave_word
from protocol.messages import Beat
from tests.simulation.test_going_back import Story, breaks_on_a_score


def fails_on_ticks(monkeypatch, *, if_broken: bool) -> None:
    absorb = Core._absorb

    def absorbed(self, event):
        if isinstance(event, Tick) and (violation_of(self) is not None) == if_broken:
            raise ZeroDivisionError("a bug")
        absorb(self, event)

    monkeypatch.setattr(Core, "_absorb", absorbed)


def end_failed(story: Story, run) -> None:
    """The core fails on an event that nobody has said, and the controller ends."""
    with pytest.raises(ZeroDivisionError) as raised:
        run.turn([(Tick(), ())])
    with run.store.transaction():
        leave_word(run.store, run.stepper, raised.value)
    run.store.close()


def test_the_run_goes_back_to_before_the_event_that_broke_the_core(tmp_path, monkeypatch):
    fails_on_ticks(monkeypatch, if_broken=True)
    breaks_on_a_score(monkeypatch, attempts={1})
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: violation_of(run.core) is not None)
    end_failed(story, run)
    last = run.stepper.last
    again = story.begin()
    _, skipped = story.events()
    assert "the core broke an invariant: the token ledger" in next(iter(skipped.values()))
    assert skipped[last] == ""
    again.run()
    story.check_whole(again)


def test_the_author_of_a_word_that_is_passed_over_on_the_way_back_is_closed(tmp_path, monkeypatch):
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps == 1)
    (judge,) = (peer for peer, worker in run.workers.items() if worker.role == "reward")
    absorb, breaks_at = Core._absorb, run.now + 1

    def absorbed(self, event):
        if isinstance(event, Received) and isinstance(event.message, Beat) and event.peer == judge:
            raise ZeroDivisionError("its word")
        if isinstance(event, Tick) and violation_of(self) is not None:
            raise ZeroDivisionError("a broken core")
        absorb(self, event)
        if isinstance(event, Tick) and self.state.now >= breaks_at:
            self.state.accounts.generated += 1

    monkeypatch.setattr(Core, "_absorb", absorbed)
    with run.store.transaction():
        run.stepper.write_rest()
        run.store.append_events(run.now, [(Received(judge, Beat()), False)])
        for late_s in (0.0, 0.001):
            run.store.append_events(breaks_at + late_s, [(Tick(), False)])
    run.store.close()
    with Recording(tmp_path / "run.db") as recording:
        past = gone_back(recording)
    said, broken, failed = sorted(past.skipped)
    assert (broken, failed) == (said + 1, said + 2)
    assert "its word" in past.skipped[said]
    assert [fault.peer for fault in past.faults] == [judge]


def test_a_core_that_fails_though_it_keeps_its_invariants_is_told_as_ever(tmp_path, monkeypatch):
    fails_on_ticks(monkeypatch, if_broken=False)
    story = Story(tmp_path)
    run = story.begin()
    run.run(until=lambda: run.core.state.steps == 1)
    end_failed(story, run)
    with pytest.raises(CoreFailed, match="with ZeroDivisionError: a bug"):
        story.begin()


def test_a_core_that_another_release_has_healed_is_not_searched_again(tmp_path, monkeypatch):
    """The search steps through all events, which takes minutes of a long run."""
    with monkeypatch.context() as bug:
        breaks_on_a_score(bug, attempts={1})
        story = Story(tmp_path)
        story.run_until_broken()
    again = story.begin()
    again.run(until=lambda: again.core.state.steps == 1)
    again.close()
    monkeypatch.setattr(going_back, "event_at_fault", lambda *_: pytest.fail("it was searched again"))
    third = story.begin()
    third.run()
    story.check_whole(third)
