"""One conversation of an episode, as tokens: what was said in it, and where its turns end.

Invariant: what was sampled stays as it was sampled: what follows is appended, never rendered again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from workers.agent.messages import is_same, normal

Talk = Sequence[Mapping[str, Any]]
"""Messages as `normal` makes them."""


class TurnEnd(NamedTuple):
    """Where a turn ended."""

    messages: int
    tokens: int


@dataclass(slots=True)
class Transcript:
    """One trajectory."""

    member: int
    attempt: int
    """The newest, as messages name it."""
    is_trained: bool = True
    tokens: list[int] = field(default_factory=list)
    """All of it, given and sampled, an open request's prompt included."""
    sampled: int = 0
    """Of the tokens, those of the newest turn."""
    opening: int = 0
    """Of the tokens, those that were given first."""
    asks: int = 0
    is_open: bool = False
    talk: list[dict[str, Any]] = field(default_factory=list)
    """As far as it was held in messages."""
    tools: Any = None
    ends: list[TurnEnd] = field(default_factory=list)
    """Of the turns in `talk`."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each of these turns."""

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Transcript":
        """One whose fields were saved while nothing was asked in it."""
        talk = [
            message
            | ({"tool_calls": list(map(tuple, message["tool_calls"]))} if "tool_calls" in message else {})
            for message in saved["talk"]
        ]
        return cls(**{**saved, "talk": talk, "ends": [TurnEnd(*end) for end in saved["ends"]]})

    @property
    def fields(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def open(self, given: Sequence[int]) -> None:
        """Another turn is asked for."""
        self.opening = self.opening or len(given)
        self.tokens += given
        self.asks += 1
        self.is_open = True

    def answered(self, sampled: Sequence[int]) -> None:
        """The turn was sampled."""
        self.tokens += sampled
        self.sampled = len(sampled)
        self.is_open = False

    def held(self, messages: Talk, answer: Mapping[str, Any], tools: Any) -> None:
        """The last request was these messages, and its turn reads like the answer."""
        self.talk, self.tools = [normal(message) for message in (*messages, answer)], tools
        self.ends.append(TurnEnd(len(self.talk), len(self.tokens)))
        self.lengths.append(self.sampled)

    def shared(self, talk: Talk) -> int:
        """How many messages this talk has in common with it, from the first on."""
        pairs = list(zip(self.talk, talk, strict=False))
        return next((place for place, two in enumerate(pairs) if not is_same(*two)), len(pairs))

    def goes_on_as(self, talk: Talk, tools: Any) -> bool:
        """Whether these messages are all that was said, and something new."""
        is_longer = len(talk) > len(self.talk) > 0
        return is_longer and tools == self.tools and self.shared(talk) == len(self.talk)

    def last_end(self, talk: Talk, tools: Any) -> TurnEnd:
        """Behind the last turn that these messages have in common with it, and go on from."""
        most = min(self.shared(talk), len(talk) - 1) if tools == self.tools else 0
        return max((end for end in self.ends if end.messages <= most), default=TurnEnd(0, 0))

    def length_at(self, end: TurnEnd) -> int:
        """Tokens of the turn that ends there."""
        return dict(zip(self.ends, self.lengths, strict=False)).get(end, 0)
