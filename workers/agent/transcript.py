"""The one conversation of an episode, as tokens: what a request adds to it.

Invariants: what was sampled stays as it was sampled: what follows is appended, never rendered again; a
request that does not go on from the last answer is refused in words, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workers.agent.messages import is_same, normal
from workers.agent.renderer import Renderer


class OneConversation(ValueError):
    """A request that would need a second conversation, which an episode has not."""


class Transcript:
    """The trajectory of one episode."""

    def __init__(self, renderer: Renderer | None) -> None:
        """`renderer`: None where the tokenizer has no chat template, so that there are no messages."""
        self._renderer = renderer
        self.tokens: list[int] = []
        """All of it, given and sampled, an open request's prompt included."""
        self._talk: list[dict[str, Any]] = []  # normal, as far as it was held in messages
        self._tools: Any = None
        self._is_open = False

    def place(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[int]:
        """The tokens that these checked messages add. Raises: ValueError; whatever the template raises."""
        self._check_turn()
        if self._renderer is None:
            raise ValueError(
                "The tokenizer of `model.path` has no chat template. Give it one, set "
                "`agent.renderer: plain`, or use policy.generate."
            )
        if not self._talk:
            return self._behind(self._renderer.render(messages, tools))
        talk = [normal(message) for message in messages]
        pairs = zip(self._talk, talk, strict=False)
        same = next((place for place, two in enumerate(pairs) if not is_same(*two)), len(self._talk))
        if same < len(self._talk) or len(talk) <= len(self._talk):
            raise OneConversation(
                f"Message {min(same, len(talk))} is not what it was in the last request: "
                f"{talk[same] if same < len(talk) else 'nothing'!r:.100} instead of "
                f"{self._talk[min(same, len(self._talk) - 1)]!r:.100}. An episode has one conversation, "
                "whose history cannot be edited; append to the messages."
            )
        if tools != self._tools:
            raise OneConversation(
                "The tools are others than in the last request. They stand at the beginning of the one "
                "conversation that an episode has; give the same in every request."
            )
        return self._renderer.extend(self.tokens[-1], messages[len(self._talk) :], tools)

    def place_tokens(self, whole: Sequence[int]) -> list[int]:
        """The same of a request that is token ids, all that the policy is to continue. Raises: ValueError."""
        self._check_turn()
        return self._behind(list(whole))

    def open(self, given: Sequence[int]) -> None:
        """The turn is asked for."""
        self.tokens += given
        self._is_open = True

    def answered(self, sampled: Sequence[int]) -> None:
        """The turn was sampled."""
        self.tokens += sampled
        self._is_open = False

    def held(self, messages: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], tools: Any) -> None:
        """The last request was these messages, and its turn reads like the answer."""
        self._talk, self._tools = [normal(message) for message in (*messages, answer)], tools

    def _check_turn(self) -> None:
        if self._is_open:
            raise OneConversation(
                "Two requests at once in one episode. It has one conversation: await the first answer before "
                "asking again."
            )

    def _behind(self, whole: list[int]) -> list[int]:
        count = len(self.tokens)
        if whole[:count] != self.tokens:
            pairs = zip(whole, self.tokens, strict=False)
            same = next((place for place, (new, old) in enumerate(pairs) if new != old), len(whole))
            raise ValueError(
                f"The request has {len(whole)} tokens, and differs at token {same} from the {count} of the "
                "episode so far. An episode has one conversation; append to its tokens."
            )
        if len(whole) == count:
            raise ValueError(
                "The request adds nothing to the conversation; expected at least one token that the policy "
                "has not answered yet."
            )
        return whole[count:]
