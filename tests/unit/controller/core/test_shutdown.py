"""The end of a run: when the data is over, what is saved and evaluated first, and what is called back."""

from controller.core import shutdown
from controller.core.commands import Finish, Warn
from controller.core.events import PromptsRead, StopRequested, Tick, WorkerExited
from protocol.messages import (
    Abort,
    CheckpointSaved,
    Close,
    Detach,
    GroupScored,
    PromptsEncoded,
    SaveCheckpoint,
    Score,
    TrainStepFinished,
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
    assert finish.reason.startswith("enough The trainer was lost before the last of them was saved")


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
    assert "Version 1 is not saved" in text
    assert "77 s for another one (limits.end_s)" in text
    run.attach("second", "trainer")
    assert not run.core.state.finished
