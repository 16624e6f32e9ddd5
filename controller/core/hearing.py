"""Passes each message of an attached worker to the decisions that handle it: one `match` for each role.

Invariant: each `match` has a case for every message that its role may send (`FromRollout`, `FromReward`,
`FromAgent`, `FromTrainer`); a missing case fails the type checker and tests/unit/test_messages_are_heard.py.
"""

from typing import TYPE_CHECKING, assert_never, cast

from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker
from controller.core.state.told import ToldTrainer
from protocol import messages
from protocol.messages import FromAgent, FromAnyRole, FromReward, FromRollout, FromTrainer, Message

if TYPE_CHECKING:
    from controller.core.core import Core


REPORTS = (
    messages.Generated,
    messages.InstanceStatus,
    messages.Beat,
    messages.MachineUse,
    messages.GroupScored,
    messages.ScoreFailed,
    messages.PromptsEncoded,
    messages.ExamplesEncoded,
)
"""Messages that come many at once: one decision after several of them is as good as one after each."""


def hear(core: "Core", worker: Worker, message: Message) -> None:
    """Handle a message of an attached worker that `Plausibility` has passed."""
    if isinstance(worker, Instance):
        _from_instance(core, worker, cast("FromRollout", message))
    elif isinstance(worker, TextWorker):
        _from_text_worker(core, worker, cast("FromReward", message))
    elif isinstance(worker, AgentWorker):
        _from_agent(core, worker, cast("FromAgent", message))
    else:
        _from_trainer(core, worker, cast("FromTrainer", message))


def _from_any_role(core: "Core", worker: Worker, message: FromAnyRole) -> None:
    match message:
        case messages.Beat():
            pass
        case messages.Ready():
            _ready(core, worker, message)
        case messages.Detach(reason):
            core.membership.detach(worker, reason)
        case messages.WorkerFailed():
            core.membership.failed(worker, message)
        case messages.MachineUse():
            worker.usage = message
        case _:
            assert_never(message)


def _ready(core: "Core", worker: Worker, message: messages.Ready) -> None:
    if isinstance(worker, Instance):
        core.reattachment.on_ready(worker)
    core.membership.ready(worker, message)
    if isinstance(worker, Instance):
        core.reports.on_ready(worker, message)
        core.report_pace.on_ready(worker)
    elif worker.role == "trainer":
        core.training.on_ready(worker, message)
        core.relay_tree.on_trainer(worker)
    core.membership.report_progress(worker.name)


def _from_instance(core: "Core", instance: Instance, message: FromRollout) -> None:
    match message:
        case messages.Generated():
            core.membership.reset_failures(instance)
            core.reports.on_generated(instance, message)
        case messages.InstanceStatus():
            core.reports.on_status(instance, message)
            core.migrations.on_status(instance, message)
        case messages.Pulled():
            core.reports.on_pulled(instance, message)
            core.relay_tree.on_answer(instance)
        case messages.PullFailed():
            is_awaited = core.training.is_awaited(message.policy_version)
            fault = core.reports.on_pull_failed(instance, message, is_awaited=is_awaited)
            core.relay_tree.on_answer(instance)
            if is_awaited:
                _await_version(core, message.policy_version)
            if fault is not None:
                core.membership.faulted(fault)
        case messages.Holding():
            core.reattachment.on_holding(instance, message)
        case messages.GenerationFailed():
            core.reports.on_failed(instance, message)
        case messages.Serving(endpoint):
            core.relay_tree.on_serving(instance, endpoint)
        case messages.Released():
            core.shared_device.on_released(instance, message)
        case _:
            _from_any_role(core, instance, message)


def _await_version(core: "Core", version: int) -> None:
    """Set a deadline for the trainer to publish a lost version that it holds and has not published yet."""
    trainer = core.state.registry.trainer()
    if trainer is not None and isinstance(trainer.told, ToldTrainer) and trainer.told.owes(version):
        core.limits.await_version(trainer, version)


def _from_text_worker(core: "Core", worker: TextWorker, message: FromReward) -> None:
    match message:
        case messages.PromptsEncoded():
            core.membership.filled(worker)
            core.scoring.on_encoded(worker, message)
        case messages.ExamplesEncoded():
            core.membership.filled(worker)
            core.supervised_groups.on_encoded(worker, message)
            core.scoring.on_encoded(worker, message)
        case messages.GroupScored():
            core.membership.reset_failures(worker)
            core.scoring.on_scored(worker, message)
        case messages.ScoreFailed():
            core.scoring.on_score_failed(worker, message)
        case _:
            _from_any_role(core, worker, message)


def _from_agent(core: "Core", worker: AgentWorker, message: FromAgent) -> None:
    match message:
        case messages.Ask():
            core.membership.reset_failures(worker)
            core.episodes.on_ask(worker, message)
        case messages.EpisodeEnded():
            core.episodes.on_ended(worker, message)
        case messages.EpisodeFailed():
            core.episodes.on_failed(worker, message)
        case _:
            _from_any_role(core, worker, message)


def _from_trainer(core: "Core", trainer: Worker, message: FromTrainer) -> None:
    match message:
        case messages.TrainStepFinished():
            if core.training.on_finished(trainer, message):
                core.membership.reset_failures(trainer)
        case messages.TrainedAhead(train_version):
            core.training.trainer_batches.on_ahead(train_version)
        case messages.PolicyPublished():
            core.publication.on_published(trainer, message)
        case messages.CheckpointSaved():
            core.training.on_saved(message)
        case messages.Serving(endpoint):
            core.relay_tree.on_serving(trainer, endpoint)
        case messages.Released():
            core.shared_device.on_released(trainer, message)
        case _:
            _from_any_role(core, trainer, message)
