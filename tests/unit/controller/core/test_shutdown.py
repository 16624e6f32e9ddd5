"""The end of a run: when the data is over, what is saved and evaluated first, and what is called back."""

import pytest

from controller.core import shutdown
from controller.core.commands import Finish, Warn
from controller.core.events import HeldOutRead, PromptsRead, StopRequested, Tick, WorkerExited
from controller.core.state.groups import FIRST_EVALUATION_GROUP as HELD
from protocol.messages import (
    Abort,
    Attach,
    Beat,
    CheckpointSaved,
    Close,
    Detach,
    GroupScored,
    PromptsEncoded,
    Ready,
    Route,
    SaveCheckpoint,
    Score,
    Serving,
    TrainStepFinished,
    WorkerFailed,
)
from tests.support.core_run import Run
from tests.unit.controller.core.decisions.training.test_trainer_batches import one_step


def scored(run, routes):
    for route in routes:
        run.generate(route, 4)
        for score in run.sent(Score):
            run.say("reward-0", GroupScored(score.group, score.attempt, (0.0, 1.0)))


def trained(**sections):
    """A run that has finished its first train step while the next batch is generated."""
    run = Run(**sections)
    one_step(run)
    run.do(PromptsRead(3, 2, False))
    run.say("reward-0", PromptsEncoded(((3, 3), (4, 3)), ()))
    run.say("trainer", TrainStepFinished(1, 0.5, ()))
    return run


def test_data_without_a_row_ends_the_run():
    run = Run()
    run.do(PromptsRead(0, 0, True))
    assert run.commands[-1] == Finish(False, "The data ended after 0 train steps.")
    assert [type(command.message) for command in run.commands[:-1]] == [Close] * 3


def test_data_that_ends_waits_for_what_generates():
    run = Run()
    routes = run.start_groups(2)
    assert not shutdown.is_out_of_data(run.core)
    scored(run, routes)
    assert not shutdown.is_out_of_data(run.core)  # the trainer has a batch
    run.say("trainer", TrainStepFinished(1, 0.5, ()))
    assert run.core.state.ending == "The data ended after 1 train step."


def test_groups_too_few_for_a_batch_are_counted_in_the_reason():
    run = Run()
    scored(run, run.start_groups(1))
    assert run.core.state.ending == (
        "The data ended after 0 train steps; 1 group was left over, too few for a batch."
    )


def test_what_runs_is_called_back_before_the_newest_version_is_saved():
    run = trained()
    running = dict(run.core.state.registry.workers["rollout-0"].running)
    assert running
    run.do(StopRequested("enough"))
    assert [len(abort.attempts) for abort in run.sent(Abort)] == [len(running)]
    assert [save.policy_version for save in run.sent(SaveCheckpoint)] == [1]
    assert not run.core.state.finished
    run.say("trainer", CheckpointSaved(1, "step_1"))
    assert run.commands[-1] == Finish(True, "enough")
    assert len(run.sent(Close)) == 3


def test_a_failed_run_ends_at_once_and_saves_nothing():
    run = trained()
    run.core.state.end("The reward is broken.", is_success=False)
    run.do(PromptsRead(4, 0, True))
    assert run.commands[-1] == Finish(False, "The reward is broken.")
    assert not run.sent(SaveCheckpoint)


def test_a_trainer_that_cannot_come_back_before_it_has_saved_fails_the_run():
    run = trained(controller={"respawns": 0})
    run.do(StopRequested("enough"))
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    (finish,) = [command for command in run.commands if isinstance(command, Finish)]
    assert not finish.is_success
    assert finish.reason.startswith("enough. The trainer was lost before the last of them was saved")


def test_the_reason_says_why_a_trainer_of_ours_could_not_save():
    run = trained(controller={"respawns": 0})
    run.do(StopRequested("enough"))
    run.say("trainer", WorkerFailed("The checkpoint could not be written: the disk is full.", False))
    run.do(WorkerExited("trainer", "trainer", 1, ""))
    assert run.core.state.finished
    reason = run.core.summary()["reason"]
    assert reason.startswith("enough. The trainer was lost before the last of them was saved")
    assert reason.endswith("goes on. The checkpoint could not be written: the disk is full.")


def test_the_reason_names_the_trainer_from_outside_that_was_closed_before_it_had_saved():
    run = trained(trainer={"batch_groups": 2, "local": False}, limits={"end_s": 20.0})
    run.do(StopRequested("enough"))
    run.say("trainer", CheckpointSaved(7, "step_7"))
    while not run.core.state.finished:
        run.do(Tick(), at=run.now + 5.0)
    assert not run.commands[-1].is_success
    assert "trainer was closed: It saved version 7, which it was not told to save." in run.commands[-1].reason


def test_a_trainer_from_outside_is_awaited_and_the_reason_says_how_long():
    run = trained(trainer={"batch_groups": 2, "local": False}, limits={"end_s": 77.0})
    run.say("trainer", Detach("its node is gone"))
    run.do(StopRequested("enough"))
    assert not run.core.state.finished
    (text,) = [command.text for command in run.commands if isinstance(command, Warn)]
    assert ". Version 1 is not saved" in text
    assert "77 s for another one (limits.end_s)" in text
    run.attach("second", "trainer")
    assert not run.core.state.finished


class Scattered(Run):
    """The trainer is from outside and the instance on another host; one held-out prompt is evaluated."""

    def __init__(self, **sections) -> None:
        evaluation = {"every_steps": 1, "samples": 1, "data": {"a": {"path": "-"}}}
        super().__init__(
            run={"steps": 1}, trainer={"batch_groups": 1, "local": False}, evaluation=evaluation, **sections
        )
        self.say("trainer", Serving("tcp://10.0.0.1:1"))
        self.say("rollout-0", Serving("tcp://10.0.0.2:1"))
        self.held_out(HELD)
        routes = self.sent(Route) + self.start_groups(1)
        for route in routes:
            self.generate(route, 3)
        for group in (HELD, 0):
            self.say("reward-0", GroupScored(group, 1, (1.0, 0.0)[: 1 if group == HELD else 2]))
        self.say("trainer", TrainStepFinished(1, 0.1, ()))

    def attach(self, name, role):
        self.say(name, Attach(role, name, 1, "there" if role == "rollout" else "here"))
        self.say(name, Ready(0, 4 if role == "rollout" else 0, 1000 if role == "rollout" else 0))

    def held_out(self, group):
        """The prompt is read and encoded."""
        self.do(HeldOutRead(group, ("a",), "digest"))
        self.say("reward-0", PromptsEncoded(((group, 3),), ()))

    def beat_until_the_end(self):
        """Whether the run ends with nobody but the workers that are there, within an hour."""
        while not self.core.state.finished and self.now < 3600.0:
            for peer in list(self.core.state.registry.workers):
                self.say(peer, Beat(), at=self.now + 1.0)
                if self.core.state.finished:
                    break
        return self.core.state.finished


@pytest.mark.parametrize("lost_before", [False, True])
def test_the_last_evaluation_is_left_out_if_nobody_can_get_the_last_version(lost_before):
    """It is published, but lies where the trainer was, who is gone, and the instance is elsewhere."""
    run = Scattered(limits={"end_s": 60.0})
    if lost_before:  # with its version unsaved: then it was awaited once already
        run.say("trainer", Detach("its node is gone"))
        run.attach("trainer", "trainer")
        run.say("trainer", TrainStepFinished(1, 0.1, ()))
    run.publish(1)
    run.say("trainer", CheckpointSaved(1, "step_1"))
    run.held_out(run.core.evaluation.round.first_group)
    assert not run.core.state.finished
    run.say("trainer", Detach("the limit of its job"))
    assert run.beat_until_the_end()
    assert run.core.state.ending_is_success
    assert 60.0 < run.now < 75.0
