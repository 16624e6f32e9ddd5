"""Supervised training in the core: a group's one response comes out of the data, not out of an engine.

Invariants: a group enters the ledger when the next batch has room for it, so nothing that is trained is
stale; it enters occupied, with one finished response, and from there on it is a group like any other, so that
batches, feed, checkpoints, journal and resume need to know nothing of this.
"""

from collections.abc import Sequence

from controller.core.decisions.placement.dispatch import Dispatch
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group
from protocol.messages import Segment

ATTEMPT = 1  # that the store keeps a given response under


class Examples:
    """Fills batches from the data. Without supervised training it never has anything to do."""

    def __init__(self, state: RunState, dispatch: Dispatch) -> None:
        self.state = state
        self.dispatch = dispatch
        self._lengths: dict[int, int] = {}  # response tokens of encoded groups that wait for a batch

    def add(self, group: int, response_tokens: Sequence[int]) -> None:
        """An encoded group brought responses of these lengths: one, or none where an engine makes them."""
        for tokens in response_tokens:
            self._lengths[group] = tokens

    def fill(self) -> None:
        """Occupy the next batch with what waits, in the order of the data."""
        state, waiting = self.state, self.dispatch.waiting
        while self._lengths and waiting and state.ledger.occupied < state.ledger.batch_groups:
            group = state.groups[waiting.popleft()]
            version, tokens = state.ledger.train_version, self._lengths.pop(group.id)
            state.ledger.reserve(group.id, version)
            state.started += 1
            group.start(version, size=1)
            (member,) = group.members
            member.attempt, member.response_tokens = ATTEMPT, tokens
            member.segments.append(Segment(ATTEMPT, version, tokens))
            group.finish(member, "stop")
            state.accounts.take(tokens, is_expected=True)
            group.rewards, group.advantages = (0.0,), (1.0,)
            move_group(group, "given")
            state.ledger.occupy(group.id)
