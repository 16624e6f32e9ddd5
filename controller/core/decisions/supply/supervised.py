"""Supervised training in the core: a group's one response comes from the data, not from an engine.

Invariants: a group enters the ledger when the next batch has room for it, so nothing that is trained is
stale; it enters occupied, with one finished response, and is like any other group from then on, so batches,
checkpoints, journal and resume need no case for it.
"""

from controller.core.state.registry import TextWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group
from protocol.messages import ExamplesEncoded, Segment

ATTEMPT = 1  # the attempt under which the store keeps a given response


class SupervisedGroups:
    """Fills batches from the data; does nothing unless training is supervised."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._lengths: dict[int, int] = {}  # response tokens of encoded groups that wait for a batch

    def on_encoded(self, worker: TextWorker, message: ExamplesEncoded) -> None:
        """Note the lengths of the responses that came with encoded prompts."""
        for group, _, response_tokens in message.encoded:
            if group in worker.encoding and not self.state.groups[group].is_evaluation:
                self._lengths[group] = response_tokens

    def fill(self) -> None:
        """Fill the next batch with waiting groups, in the order of the data."""
        state, waiting = self.state, self.state.fresh
        while self._lengths and waiting and state.ledger.occupied < state.ledger.batch_groups:
            group = state.groups[waiting.popleft()]
            version, tokens = state.ledger.train_version, self._lengths.pop(group.id)
            state.ledger.reserve(group.id, version, source=group.source)
            state.started += 1
            group.start(version, size=1)
            (member,) = group.members
            member.attempt, member.response_tokens = ATTEMPT, tokens
            member.segments.append(Segment(ATTEMPT, version, tokens))
            group.finish(member, "stop")
            state.accounts.take(tokens)
            group.rewards, group.outcomes = (0.0,), (1.0,)
            move_group(group, "given")
            state.ledger.occupy(group.id)
