"""Which buffers of messages are kept, as is decided before a turn for all that comes in it.

Invariants: both answers hold for a message whatever comes before it in its turn, since nobody can know of an
order of the same turn; what an honest worker says of what it was given is kept, and none of it foretells.
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
    """Whether to keep the buffers of a message: not those of a lie.

    They might be taken for what another worker says of the same thing. Those of what this worker was given
    are kept, of no more tokens than that may have.
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
    """Why a message whose buffers are not kept is a lie; None if it is none, or if that can wait.

    It tells of what the worker has not been given. If it is given just that in the same turn, the core would
    believe the message, and miss its buffers. A trainer's are missed by nobody.
    """
    if worker is None or worker.role == "trainer":
        return None
    return plausibility.objection(worker, message)


def groups_with_payload(state: RunState, evaluation: EvaluationRound | None) -> list[int]:
    """Groups in the system, in batches that may be made again, and held-out ones that people may read."""
    trained = [group for batch in state.batches.values() for group in batch.groups]
    read = [one.group for one in evaluation.worst.groups] if evaluation is not None else []
    return sorted({*state.groups, *trained, *read})


def _keeps_given(plausibility: Plausibility, worker: AgentWorker, ask: Ask) -> bool:
    """Of an episode that was ended, or that has asked something else before, nothing is kept."""
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
