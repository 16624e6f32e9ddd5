"""The conversations of an episode at an endpoint: finds the one that a request continues, or why none.

Invariants: no I/O; conversations are told apart by messages alone, by the rules of `workers/agent`; the
endpoint's template is not visible here, so it causes no forks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.messages.pieces import ForkCause
from workers.agent.fork_causes import cause_of
from workers.agent.messages import normal
from workers.agent.transcript import Transcript


class ToldConversations:
    """The conversations of one episode."""

    def __init__(self) -> None:
        self._all: list[Transcript] = []
        self.forks: list[ForkCause] = []
        """Why each conversation after its first began, for those that training would use."""

    def ask(self, messages: Sequence[Mapping[str, Any]], tools: Any, *, is_trained: bool) -> Transcript:
        """The conversation that these checked messages continue, or a new one."""
        talk = [normal(message) for message in messages]
        held = [one for one in self._all if one.is_trained == is_trained]
        able = [one for one in held if not one.is_open and one.goes_on_as(talk, tools)]
        found = max(able, key=lambda one: len(one.talk), default=None)
        if found is None:
            if self._all and is_trained:
                self.forks.append(cause_of(held, talk, tools))
            found = Transcript(len(self._all), 0, is_trained)
            self._all.append(found)
        found.open(())
        return found

    def answered(
        self, one: Transcript, messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], tools: Any
    ) -> None:
        """Note the answer to a request of these messages in its conversation."""
        one.answered(())
        one.held(messages, answer, tools)
