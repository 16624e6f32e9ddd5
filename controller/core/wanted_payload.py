"""Which buffers of messages are stored: decided before a turn, for all messages of that turn.

Invariants: the answers for a message do not depend on what comes before it in its turn, since no worker can
know an order of the same turn; buffers that an honest worker sends about its work are stored, and its
messages never speak of orders that it has not got.
"""

from operator import add

from controller.core.decisions.workers.plausibility import Plausibility
from controller.core.effects.evaluation_rounds import EvaluationRound
from controller.core.state.agents.told_agents import ToldAgent
from controller.core.state.registry import AgentWorker, TextWorker, Worker
from controller.core.state.run_state import RunState
from controller.core.state.told import ToldInstance
from protocol import messages
from protocol.messages import Ask, EpisodeEnded, Generated, Message


def keeps_payload(plausibility: Plausibility, worker: Worker | None, message: Message) -> bool:
    """Whether to store the buffers of a message.

    Those of an implausible message are not: they might be taken for what another worker says of the same
    response. Those of work that this worker was given are stored, up to the tokens that it may have.
    """
    if isinstance(worker, TextWorker):
        return plausibility.objection(worker, message) is None
    if isinstance(worker, AgentWorker):
        if isinstance(message, EpisodeEnded):
            return _runs(worker, message) and plausibility.objection(worker, message) is None
        return isinstance(message, Ask) and _keeps_given(plausibility, worker, message)
    if isinstance(message, messages.TrainStepFinished):
        return worker is not None and plausibility.objection(worker, message) is None
    if worker is None or not isinstance(worker.told, ToldInstance) or not isinstance(message, Generated):
        return False
    most = plausibility.state.config.rollout.max_response_tokens
    told = worker.told
    keys = message.keys_from(told.columns.led_by(message))
    is_known = all(map(told.given.__contains__, keys)) or all(map(told.knows, message.keys))
    return is_known and max(map(add, message.starts, message.counts), default=0) <= most


def foretelling(plausibility: Plausibility, worker: Worker | None, message: Message) -> str | None:
    """Why a message whose buffers are not stored is implausible; None if it is not, or is of a trainer.

    Such a message speaks of work that the worker was not given. If the worker were given just that work in
    the same turn, the core would believe the message and miss its buffers. A trainer's buffers are optional.
    """
    if worker is None or worker.role == "trainer":
        return None
    return plausibility.objection(worker, message)


def groups_with_payload(state: RunState, evaluation: EvaluationRound | None) -> list[int]:
    """Groups in the system, in batches that may be trained again, and held-out ones kept as samples."""
    trained = [group for batch in state.batches.values() for group in batch.groups]
    read = [one.group for one in evaluation.worst.groups] if evaluation is not None else []
    return sorted({*state.groups, *trained, *read})


def _keeps_given(plausibility: Plausibility, worker: AgentWorker, ask: Ask) -> bool:
    """Whether to store given tokens: not of an ended episode, nor of a repeated ask that has changed."""
    if not _runs(worker, ask):
        return False
    told = worker.told
    assert isinstance(told, ToldAgent)
    is_wrong = plausibility.objection(worker, ask) is not None
    if is_wrong and not told.could_begin(ask, plausibility.ask_limits()):
        return False
    asked = plausibility.state.groups[ask.group].episodes[ask.episode].find(ask)
    return asked is None or asked.is_repeated_by(ask)


def _runs(worker: AgentWorker, message: Ask | EpisodeEnded) -> bool:
    return worker.episodes.get((message.group, message.episode)) == message.trial
