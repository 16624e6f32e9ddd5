"""Any checkpoint that the trainer keeps will do: the batches since the oldest are kept."""

import pytest

from controller.core.commands import DropPayload, Send, Warn
from controller.core.events import StopRequested, WorkerExited
from protocol import messages
from protocol.messages import Attach
from protocol.settings import load_settings
from tests.support.core_run import Run
from tests.unit.controller.core.decisions.training.test_trainer_batches import another_trainer, of, one_step


def run_of(steps, *, saved, **trainer):
    """A run that has made so many steps and saved these versions."""
    run = Run(
        run={"steps": 9},
        staleness={"max_staleness": 4, "mu": 0.0, "synchronization": "greedy"},
        trainer={"batch_groups": 2, "checkpoint_steps": 1, **trainer},
    )
    dropped = []
    for step in range(steps):
        one_step(run, first=3 * step)
        run.say("trainer", messages.TrainStepFinished(step + 1, 0.5, ()))
        if step + 1 in saved:
            run.say("trainer", messages.CheckpointSaved(step + 1, f"step_{step + 1}"))
        dropped += [group for drop in of(run, DropPayload) for group in drop.groups]
    return run, dropped


def test_what_made_the_oldest_of_them_is_dropped_and_nothing_since():
    assert run_of(3, saved=(1, 2, 3))[1] == [0, 1, 3, 4]
    assert run_of(2, saved=(1, 2))[1] == [0, 1]
    assert run_of(1, saved=(1,))[1] == []  # the second way back is the initial model
    assert run_of(2, saved=(1, 2), keep_checkpoints=1)[1] == [0, 1, 3, 4]


@pytest.mark.parametrize(("saved", "version"), [((1, 2), 1), ((1,), 0)])
def test_a_trainer_that_falls_back_makes_the_same_batches_again_and_it_is_said(saved, version):
    run, _ = run_of(2, saved=saved)
    kept = dict(run.core.state.batches)
    another_trainer(run, version)
    (told,) = of(run, Warn)
    assert f"began at version {version}, though a checkpoint of version {saved[-1]} was written" in told.text
    for train_version in range(version, 2):
        (again,) = run.sent(messages.Train)
        assert (again.train_version, again.items) == (train_version, kept[train_version].items)
        run.say("second", messages.TrainStepFinished(train_version + 1, 0.5, ()))
    assert run.core.state.steps == 2
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(2)]
    run.core.check()


def test_who_falls_back_behind_all_that_is_kept_is_told_what_to_put_back():
    run, _ = run_of(3, saved=(1, 2, 3))
    another_trainer(run, 1)
    reason = run.core.summary()["reason"]
    assert (
        "keeps the batches from version 2 on, so expected 2 to 3. All checkpoints from version 2 on" in reason
    )


def test_so_is_who_comes_when_the_run_only_has_to_save_what_it_made():
    run, _ = run_of(3, saved=(1, 2))
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.do(StopRequested("Enough."))
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", messages.Ready(0, 0, 0))
    assert run.core.state.finished
    summary = run.core.summary()
    assert not summary["is_success"]
    assert summary["reason"].startswith("Enough. The trainer began at version 0; the run has made 3")


def test_a_checkpoint_newer_than_the_journal_is_said_to_be_that():
    run, _ = run_of(1, saved=(1,))
    another_trainer(run, 4)
    reason = run.core.summary()["reason"]
    assert "began at version 4, but run.db ends after version 1: its end is lost" in reason
    assert "expected 0 to 1, or no checkpoint. Move newer ones out" in reason


def test_a_trainer_is_told_beyond_which_version_no_checkpoint_counts():
    run, _ = run_of(2, saved=(1,))
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    for peer, role in (("t", "trainer"), ("r", "rollout")):
        run.say(peer, Attach(role, role, 2, "here"))
        (welcome,) = [c.message for c in of(run, Send) if isinstance(c.message, messages.Welcome)]
        assert load_settings(welcome.settings).newest_version == (2 if role == "trainer" else None)
