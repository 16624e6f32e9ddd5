"""A trainer that is lost, event by event: what its successor gets, and what is said only once."""

import pytest

from controller.core.commands import DropPayload, Forget, ReadPrompts, ReportStep, Send, Spawn
from controller.core.events import (
    OLD_RULES,
    RULES,
    PromptsRead,
    Received,
    Restarted,
    StopRequested,
    WorkerExited,
)
from protocol import messages
from protocol.messages import Attach
from tests.support.core_run import Run


def of(run, kind):
    return [command for command in run.commands if isinstance(command, kind)]


def one_step(run, first: int = 0) -> messages.Train:
    """A batch, of prompts from `first` on, is generated, scored and sent to the trainer."""
    run.do(PromptsRead(first, 3, False))
    run.say("reward-0", messages.PromptsEncoded(((first, 3), (first + 1, 3)), ((first + 2, "too long"),)))
    routes = run.sent(messages.Route)
    if first == 0:
        run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
        routes += run.sent(messages.Route)
    for route in routes:
        run.generate(route, 4)
        for score in run.sent(messages.Score):
            run.say("reward-0", messages.GroupScored(score.group, score.attempt, (0.0, 1.0)))
    (train,) = run.sent(messages.Train)
    return train


def another_trainer(run, version: int) -> None:
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    assert of(run, Spawn) == [Spawn("trainer", "trainer", 0.0)]
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", messages.Ready(version, 0, 0))


def test_a_batch_that_was_under_way_goes_to_the_next_trainer():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    train = one_step(run)
    another_trainer(run, 0)
    assert run.sent(messages.Train) == [train]
    run.say("second", messages.TrainStepFinished(1, 0.5, ()))
    assert [command.metrics["step"] for command in of(run, ReportStep)] == [1]
    assert not of(run, DropPayload)


def test_a_checkpoint_that_an_operator_wants_is_asked_of_the_next_trainer_if_it_was_not_complete():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 0})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("operator", messages.Control("checkpoint", "", "anna@here", ""))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(1)]
    another_trainer(run, 0)
    run.say("second", messages.TrainStepFinished(1, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(1)]
    run.say("second", messages.CheckpointSaved(1, "checkpoints/step_1"))
    assert not run.core.state.is_save_wanted


def test_a_version_that_is_gone_with_its_trainer_is_pulled_when_it_is_there_again():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest", 1, 0.1))
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("rollout-0", messages.PullFailed(1, "v1 is not there"))
    assert not run.sent(messages.Close) + run.sent(messages.Pull)
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", messages.Ready(0, 0, 0))
    run.say("second", messages.TrainStepFinished(1, 0.5, ()))
    assert not run.sent(messages.Pull)
    run.say("second", messages.PolicyPublished(1, "elsewhere", "digest", 1, 0.1))
    assert {pull.location for pull in run.sent(messages.Pull)} == {"elsewhere"}
    assert not run.sent(messages.Retire)


def test_of_two_trainers_of_one_name_the_first_is_told_to_end_so_that_it_does_not_come_back():
    run = Run(trainer={"batch_groups": 2, "local": False})
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    told = [command.peer for command in of(run, Send) if isinstance(command.message, messages.Close)]
    assert told == ["trainer"]
    assert of(run, Forget) == [Forget("trainer", "trainer")]
    run.say("second", messages.Ready(0, 0, 0))
    assert run.core.state.registry.trainer().peer == "second"


def test_a_version_that_a_trainer_finds_on_its_host_counts_only_if_this_run_has_made_it():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.say("second", Attach("trainer", "trainer", 2, "here"))
    run.say("second", messages.PolicyPublished(2, "of another run", "digest", 1, 0.0))
    assert run.sent(messages.Retire) == [messages.Retire(2)]
    assert not run.sent(messages.Pull)
    run.say("second", messages.PolicyPublished(1, "v1", "digest", 1, 0.0))  # its end was not told
    assert {pull.location for pull in run.sent(messages.Pull)} == {"v1"}


def test_a_step_that_was_lost_is_made_again_without_a_line():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    train = one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest", 1, 0.1))
    another_trainer(run, 0)
    (again,) = run.sent(messages.Train)
    assert (again.items, again.train_version, again.is_published) == (train.items, 0, False)
    assert run.core.training.is_busy
    run.say("second", messages.PolicyPublished(0, "v0", "digest", 1, 0.1))
    assert messages.Retire(0) in run.sent(messages.Retire)
    run.say("second", messages.TrainStepFinished(1, 0.5, ()))
    assert not of(run, ReportStep)
    assert not run.core.training.is_busy
    assert run.core.state.accounts.counts["trainer/steps_again"] == 1


def test_a_version_that_nobody_saw_is_published_when_it_is_made_again():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    another_trainer(run, 0)
    assert [train.is_published for train in run.sent(messages.Train)] == [False]


def test_payload_is_dropped_once_a_checkpoint_covers_it_even_if_it_was_not_told():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 1, "keep_checkpoints": 1})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(1)]
    assert not of(run, DropPayload)
    another_trainer(run, 1)  # the checkpoint was complete, and its writer died before it said so
    assert of(run, DropPayload) == [DropPayload((0, 1))]
    assert not run.sent(messages.Train) + run.sent(messages.SaveCheckpoint)


def test_batches_go_on_while_a_checkpoint_is_written_and_one_is_written_at_a_time():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 1})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    assert one_step(run, first=3).train_version == 1
    run.say("trainer", messages.TrainStepFinished(2, 0.5, ()))
    assert not run.sent(messages.SaveCheckpoint)
    run.do(StopRequested("enough"))
    assert not run.sent(messages.SaveCheckpoint)
    run.say("trainer", messages.CheckpointSaved(1, "step_1"))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(2)]
    assert not run.core.state.finished
    run.say("trainer", messages.CheckpointSaved(2, "step_2"))
    assert run.core.state.finished


@pytest.mark.parametrize(
    ("rules", "began_at", "saved"),
    [(OLD_RULES, 0, []), (RULES, 0, [messages.SaveCheckpoint(3)]), (RULES, 2, [])],
    ids=["older rules", "lost", "it was complete"],
)
def test_a_due_checkpoint_that_was_lost_with_its_trainer_is_made_after_the_next_step(rules, began_at, saved):
    staleness = {"max_staleness": 3, "mu": 0.0, "synchronization": "greedy"}
    trainer = {"batch_groups": 2, "checkpoint_steps": 2}
    run = Run(rules=rules, run={"steps": 9}, staleness=staleness, trainer=trainer)
    for step in (1, 2):
        one_step(run, first=3 * step - 3)
        run.say("trainer", messages.TrainStepFinished(step, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(2)]
    one_step(run, first=6)
    another_trainer(run, began_at)
    for step in range(began_at + 1, 3):
        run.say("second", messages.TrainStepFinished(step, 0.5, ()))
        assert not run.sent(messages.SaveCheckpoint), "it has the next batch already"
    run.say("second", messages.TrainStepFinished(3, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint) == saved


def test_a_trainer_that_begins_where_no_batch_leads_on_ends_the_run():
    for version in (0, 2):
        run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 1, "keep_checkpoints": 1})
        one_step(run)
        run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
        run.say("trainer", messages.CheckpointSaved(1, "step_1"))
        another_trainer(run, version)
        assert run.core.state.finished
        assert f"began at version {version}" in run.core.summary()["reason"]
        assert "expected 1 to 1" in run.core.summary()["reason"]


def test_a_run_that_ends_waits_for_a_trainer_that_saves_its_last_step():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.do(StopRequested("enough"))
    another_trainer(run, 0)
    run.say("second", messages.TrainStepFinished(1, 0.5, ()))
    assert run.sent(messages.SaveCheckpoint) == [messages.SaveCheckpoint(1)]
    run.say("second", messages.CheckpointSaved(1, "step_1"))
    assert run.core.state.finished
    assert run.core.summary()["is_success"]


def test_another_controller_routes_on_from_the_last_token_and_asks_for_the_same_prompts():
    run = Run()
    run.do(PromptsRead(0, 1, False))
    run.do(PromptsRead(1, 1, False))
    (wanted,) = of(run, ReadPrompts)
    run.say("reward-0", messages.PromptsEncoded(((0, 3),), ()))  # the other one is still with the worker
    first, other = run.sent(messages.Route)
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.generate(first, 4, ending="")
    run.do(Restarted(run.config.model_dump_json(), "elsewhere", ()))
    assert of(run, ReadPrompts) == [wanted]
    assert [spawn.role for spawn in of(run, Spawn)] == ["trainer", "reward", "rollout"]
    run.say("trainer", messages.TrainStepFinished(1, 0.1, ()))  # a word of the last epoch
    assert [type(c.message) for c in run.commands if isinstance(c, Send)] == [messages.Close]
    for peer, role in (("a", "reward"), ("b", "rollout")):
        run.say(peer, Attach(role, f"{role}-0", 1, "here"))
        run.do(Received(peer, messages.Ready(0, 4, 1000) if role == "rollout" else messages.Ready(0, 0, 0)))
        if role == "reward":
            assert run.sent(messages.Encode) == [messages.Encode((1,))]
    assert run.sent(messages.Route) == []  # whether version 0 is still there, the trainer has to say
    run.say("c", Attach("trainer", "trainer", 1, "here"))
    run.say("c", messages.Ready(0, 0, 0))
    run.say("c", messages.PolicyPublished(0, "v", "digest", 1, 0.1))
    routes = {route.member: route for route in run.sent(messages.Route)}
    assert routes[first.member].segments == (messages.Segment(first.attempt, 0, 4),)
    assert routes[first.member].max_new_tokens == first.max_new_tokens - 4
    assert routes[other.member].segments == ()


def test_the_version_that_the_next_trainer_begins_with_is_not_freed_while_there_is_no_newer_one():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("trainer", messages.PolicyPublished(1, "v1", "digest", 1, 0.1))
    retired = run.sent(messages.Retire)
    run.do(Restarted(run.config.model_dump_json(), "elsewhere", ()))
    run.say("c", Attach("trainer", "trainer", 1, "here"))
    run.say("c", messages.Ready(0, 0, 0))  # it has no checkpoint, and makes version 0 visible again
    assert retired == [messages.Retire(0)]
    assert run.sent(messages.Retire) == []
    assert [train.train_version for train in run.sent(messages.Train)] == [0]


def test_groups_that_were_trained_are_freed_by_the_events_that_follow():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    assert len(run.core.state.disposal) == 2
    run.say("trainer", messages.Beat())
    assert not len(run.core.state.disposal)


def test_items_that_a_checkpoint_covers_are_freed_by_the_events_that_follow():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 1, "keep_checkpoints": 1})
    one_step(run)
    run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
    run.say("trainer", messages.CheckpointSaved(1, "step_1"))
    assert not run.core.state.batches
    assert len(run.core.state.disposal) == 4
    run.say("trainer", messages.Beat())
    assert not len(run.core.state.disposal)


def test_the_figures_of_a_batch_are_counted_by_the_events_that_follow():
    run = Run(trainer={"batch_groups": 2, "checkpoint_steps": 5})
    one_step(run)
    assert run.core.training.figures.left == 2
    run.say("trainer", messages.Beat())
    assert run.core.training.figures.left == 0
