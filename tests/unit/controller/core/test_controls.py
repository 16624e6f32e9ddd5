"""Orders of an operator: what each does to a run, and what is refused."""

import pytest

from controller.core.commands import Send
from controller.core.liveness import ReasonKind, why_alive
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.messages import Close, Control, SaveCheckpoint, Train
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest

HELD_OUT = {"every_steps": 50, "at_start": False, "at_end": False, "data": {"set": {"path": "x.jsonl"}}}


class Operated(ScriptedRun):
    """A run with an operator."""

    def __init__(self, path, config):
        super().__init__(path, config, honest(config, Disk()))
        self.sent = []
        for name, role in (("r0", "rollout"), ("r1", "rollout"), ("s", "reward"), ("t", "trainer")):
            self.attach(name, role)

    def turn(self, batch):
        wanted = super().turn(batch)
        self.sent += [(command.peer, command.message) for command in wanted if isinstance(command, Send)]
        return wanted

    def of(self, kind):
        return [message for _, message in self.sent if isinstance(message, kind)]

    def order(self, action, argument="", why=""):
        """Give an order; returns the answer."""
        peer = f"{len(self.sent):032x}"
        self.say(peer, [(Control(action, argument, "anna@here", why), ())])
        while self.inbox:
            self.turn([self.inbox.popleft()])
        (answer,) = [message for to, message in self.sent if to == peer]
        assert isinstance(answer, Close)
        return answer

    def quiet(self):
        """Let everybody do what there is to do."""
        while self.inbox or self._work():
            self.turn([self.inbox.popleft()])


@pytest.fixture
def run(tmp_path):
    made = Operated(tmp_path / "run.db", config_of(steps=6, evaluation=HELD_OUT))
    made.run(until=lambda: made.core.state.steps >= 2)
    yield made
    made.close()


def test_a_paused_run_ends_what_runs_and_begins_nothing(run):
    assert not run.order("pause", why="lunch").is_fault
    run.quiet()
    steps, trained, started = run.core.state.steps, len(run.of(Train)), run.core.state.started
    now = run.now
    run._wait()
    run.quiet()
    assert run.now > now or run.core.next_deadline() is None
    assert (run.core.state.steps, len(run.of(Train)), run.core.state.started) == (steps, trained, started)
    assert run.core.state.registry.busy_instances == 0
    found = why_alive(run.core)
    assert found.kind == ReasonKind.PAUSED
    assert not found.is_still
    assert "an operator has paused the run: anna@here has paused the run" in found.text
    assert "(lunch)" in run.core.snapshot().paused
    assert run.core.snapshot().waiting_for == "an operator to unpause it"


@pytest.mark.parametrize("is_end", [False, True])
def test_a_batch_that_was_held_for_an_even_pace_is_due_no_more_in_a_pause_or_at_the_end(run, is_end):
    run.core.training.held_until = run.core.state.now + 0.01  # as if staleness.pace had held it
    if is_end:
        run.core.state.end("by request", is_success=True)
        run._wait()
    else:
        run.order("pause")
    run.quiet()
    assert run.core.training.held_until is None, "a Tick would be due again and again"
    run.core.check()


def test_a_place_that_becomes_free_in_a_pause_stays_free(run):
    run.run(until=lambda: any(g.state == "generating" for g in run.core.state.groups.values()))
    group = next(g.id for g in run.core.state.groups.values() if g.state == "generating")
    run.order("pause")
    started = run.core.state.started
    run.order("abort", str(group))
    run.quiet()
    assert run.core.state.fresh, "a prompt waits that could start"
    assert run.core.state.started == started - 1
    run.order("unpause")
    run.run()
    assert run.end.is_success


def test_an_unpaused_run_makes_all_its_steps(run):
    run.order("pause")
    run.quiet()
    assert run.order("unpause").reason.startswith("The run goes on, after a pause of ")
    run.run()
    assert run.end.is_success
    assert len(run.lines) == 6
    assert run.core.state.accounts.spent_s["paused"] > 0


def test_of_two_people_who_press_opposite_controls_the_second_hears_what_the_first_did(run):
    assert not run.order("pause", why="lunch").is_fault
    again = run.order("pause", why="dinner")
    assert again.is_fault
    assert "anna@here has paused the run" in again.reason
    assert "(lunch)" in again.reason
    assert "Nothing was changed" in again.reason
    assert not run.order("unpause").is_fault
    late = run.order("unpause", why="back from lunch")
    assert late.is_fault
    assert "not paused. Nothing was changed" in late.reason
    assert run.core.state.orders == 2, "what is refused is no order that was obeyed"
    run.run()
    assert run.end.is_success


def test_a_pause_is_no_idling(run):
    run.order("pause")
    run.quiet()
    before = run.core.state.accounts.spent_s.get("paused", 0.0)
    run.now += 500.0
    run.order("unpause")
    spent = run.core.state.accounts.spent_s
    assert spent["paused"] >= before + 500.0
    assert sum(seconds for cause, seconds in spent.items() if cause != "paused") < 500.0


def test_nothing_is_learned_from_a_pause_and_it_holds_no_batch_back(tmp_path):
    """A long pause was taken for a long step: `staleness.pace` held the next batch back for as long."""
    run = Operated(tmp_path / "run.db", config_of(steps=8, evaluation=HELD_OUT))
    run.run(until=lambda: run.core.state.steps >= 4)
    before = run.core.state.pace
    run.order("pause")
    run.quiet()
    run.now += 3600.0
    run.order("unpause")
    run.run()
    assert len(run.lines) == 8
    assert max(run.core.state.pace.periods) < 10.0
    assert run.core.state.pace.period_s < 10 * before.period_s
    assert max(line["time_s/wait"] for line in run.lines) < 10.0
    run.close()


def test_a_paused_run_is_paused_still_after_a_restart(tmp_path):
    config = config_of(steps=6)
    first = Operated(tmp_path / "run.db", config)
    first.run(until=lambda: first.core.state.steps >= 2)
    first.order("pause", why="night")
    first.close()
    again = Operated(tmp_path / "run.db", config)
    again.quiet()
    assert any("paused the run" in text and "(night)" in text for text in again.warnings)
    steps = again.core.state.steps
    again.quiet()
    assert again.core.state.steps == steps
    again.order("unpause")
    again.run()
    assert again.end.is_success
    again.close()


def test_a_second_pause_and_a_second_unpause_are_refused(run):
    run.order("pause", why="first")
    answer = run.order("pause", why="second")
    assert answer.is_fault
    assert "(first)" in answer.reason
    run.order("unpause")
    assert run.order("unpause").is_fault


def test_a_checkpoint_is_saved_once_though_none_is_due(tmp_path):
    config = config_of(steps=9, trainer={"checkpoint_steps": 0})
    run = Operated(tmp_path / "run.db", config)
    run.run(until=lambda: run.core.state.steps >= 3)
    assert not run.of(SaveCheckpoint)
    assert not run.order("checkpoint").is_fault
    run.run(until=lambda: run.core.training.trainer_batches.saved_version >= 3)
    assert len(run.of(SaveCheckpoint)) == 1
    run.run(until=lambda: run.core.state.steps >= 6)
    assert len(run.of(SaveCheckpoint)) == 1
    run.close()


def test_an_aborted_group_is_replaced(run):
    run.run(until=lambda: any(g.state == "generating" for g in run.core.state.groups.values()))
    group = next(g.id for g in run.core.state.groups.values() if g.state == "generating")
    aborted = run.core.state.accounts.counts["groups/aborted"]
    assert not run.order("abort", str(group)).is_fault
    assert group not in run.core.state.groups
    assert run.core.state.accounts.counts["groups/aborted"] == aborted + 1
    run.run()
    assert run.end.is_success


@pytest.mark.parametrize("argument", ["999999", "-1", "x", "", "9" * 30])
def test_no_group_that_is_not_there_is_aborted(run, argument):
    answer = run.order("abort", argument)
    assert answer.is_fault
    assert "There is no training group" in answer.reason


def test_a_refused_abort_names_some_that_can_be(run):
    run.run(until=lambda: any(g.state == "generating" for g in run.core.state.groups.values()))
    reason = run.order("abort", "999999").reason
    named = reason.partition(", such as ")[2].rstrip(".").split(", ")
    assert 1 <= len(named) <= 5
    assert not run.order("abort", named[-1]).is_fault


def test_an_evaluation_is_made_though_none_is_due(run):
    assert run.core.evaluation.round is None
    answer = run.order("evaluate")
    assert "is evaluated now" in answer.reason
    version = run.core.evaluation.round.policy_version
    run.run(until=lambda: bool(run.core.evaluation.reports))
    assert run.core.evaluation.reports[0]["policy_version"] == version


def test_a_live_key_counts_from_now_on(run):
    assert run.order("set", "samples.groups=1").reason == "samples.groups is 1 from now on; it was 4."
    assert run.core.state.config.samples.groups == 1


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("trainer.lr=1", "no live key"),
        ("samples.groups=-1", "greater than or equal to 0"),
        ("samples.groups=", "no JSON"),
        ("limits.colour=1", "There is no key"),
        ("samples.groups=" + "[" * 60_000, "no JSON"),
        ("limits.answer_s=null", "valid number"),
        ("staleness.in_flight_batches=2.0", "only a number may take a number's place"),
        ("evaluation.every_steps=0", "settled when a run starts"),
    ],
)
def test_a_key_that_cannot_be_changed_is_refused_and_nothing_changes(run, argument, why):
    before = run.core.state.config
    answer = run.order("set", argument)
    assert answer.is_fault
    assert why in answer.reason
    assert run.core.state.config == before


def test_a_run_with_orders_replays_bit_for_bit(tmp_path):
    run = Operated(tmp_path / "run.db", config_of(steps=6))
    run.run(until=lambda: run.core.state.steps >= 1)
    run.order("pause")
    run.quiet()
    run.order("checkpoint")
    run.order("set", "samples.groups=1")
    run.order("set", "samples.groups=nonsense")
    run.order("unpause")
    run.run()
    run.close()
    with Recording(tmp_path / "run.db") as recording:
        verdict = replay(recording)
    assert verdict.is_equal
    assert verdict.finished


@pytest.mark.parametrize(
    ("action", "argument"),
    [("pause", ""), ("unpause", ""), ("checkpoint", ""), ("evaluate", ""), ("abort", "")],
)
def test_a_run_that_ends_takes_no_more_orders_and_says_why(run, action, argument):
    run.run(until=lambda: run.core.state.ending is not None)
    run.inbox.clear()  # the trainer has not saved the last version yet
    before = run.core.state.orders
    answer = run.order(action, argument)
    assert answer.is_fault
    assert answer.reason.startswith("The run is ending: ")
    assert run.core.state.orders == before
