"""The conversations of an episode that an endpoint answers: which one a request goes on with, or why none.

Invariants: no I/O; they are told apart by their messages alone, by the rules of `workers/agent`; what an
endpoint's own template makes of a past nobody here can see, so nothing forks for that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.messages.pieces import ForkCause
from workers.agent.fork_causes import cause_of
from workers.agent.messages import normal
from workers.agent.transcript import Transcript


class ToldConversations:
    """Of one episode."""

    def __init__(self) -> None:
        self._all: list[Transcript] = []
        self.forks: list[ForkCause] = []
        """Why it has each conversation beside its first that training would take."""

    def ask(self, messages: Sequence[Mapping[str, Any]], tools: Any, *, is_trained: bool) -> Transcript:
        """The conversation that these checked messages go on with, begun by them if need be."""
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
        """The request of these messages, which was placed in this one, has its answer."""
        one.answered(())
        one.held(messages, answer, tools)
