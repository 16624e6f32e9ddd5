"""The conversations of an episode: finds the one that a request continues, or begins another.

Invariants: a request continues the longest conversation that it repeats completely, unless that one awaits an
answer; any other request begins a trajectory, whose given tokens are those of the turns that it shares with
an existing conversation, and the rendered rest; a refusal changes nothing. With `agent.history: template`, a
request continues a conversation only if the template writes all of its past as before, and a new trajectory
is rendered completely.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.messages.pieces import ForkCause
from workers.agent.fork_causes import cause_of, cause_of_tokens
from workers.agent.messages import normal
from workers.agent.rendering.renderer import TEMPLATE_ERRORS, Past, Renderer
from workers.agent.rendering.spelling import Messages
from workers.agent.transcript import Talk, Transcript


class TooManyConversations(ValueError):
    """A request that would exceed `agent.max_trajectories`."""


class Placed(NamedTuple):
    """The place of a request: a conversation, and the tokens given after it."""

    transcript: Transcript | None  # None: the request begins one
    given: list[int]

    @property
    def length(self) -> int:
        """Tokens of the trajectory, including the given ones."""
        return len(self.given) + (len(self.transcript.tokens) if self.transcript else 0)


class Conversations:
    """The trajectories of one episode."""

    def __init__(
        self, renderer: Renderer | None, *, first: int, step: int, attempt: int, most: int,
        history: str = "keep",
    ) -> None:  # fmt: skip
        """Conversations numbered `first`, `first + step` and so on.

        `renderer`: None if the tokenizer has no chat template, so that requests have no messages. `attempt`:
        before the first of each. `most`, `history`: `agent.max_trajectories`, `agent.history`.
        """
        self._keeps_history = history != "template"
        self._renderer = renderer
        self._first, self._step, self._attempt, self._most = first, step, attempt, most
        self._all: list[Transcript] = []

    @property
    def is_idle(self) -> bool:
        """Whether no conversation awaits an answer."""
        return not any(one.is_open for one in self._all)

    @property
    def fields(self) -> list[dict[str, Any]]:
        """All conversations in JSON types."""
        return [one.fields for one in self._all]

    def restore(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """Restore conversations from `fields`."""
        self._all = [Transcript.restored(one) for one in fields]

    def told(self) -> list[tuple[int, int, int, bool]]:
        """Per conversation what the controller knows: asks, tokens, newest attempt, whether it is trained."""
        return [(one.asks, len(one.tokens), one.attempt, one.is_trained) for one in self._all]

    def find(self, member: int) -> Transcript | None:
        """The conversation of a trajectory number; None if there is none."""
        place, rest = divmod(member - self._first, self._step)
        return self._all[place] if not rest and 0 <= place < len(self._all) else None

    def begin(self, *, is_trained: bool) -> Transcript:
        """Begin another conversation."""
        member = self._first + len(self._all) * self._step
        self._all.append(Transcript(member, self._attempt, is_trained))
        return self._all[-1]

    def place(
        self, messages: Messages, tools: Any, *, is_trained: bool, renderer: Renderer | None = None
    ) -> Placed:
        """The place of these checked messages.

        `renderer`: in place of the usual one. Raises: ValueError; whatever the renderer raises.
        """
        if (renderer := renderer or self._renderer) is None:
            raise ValueError(
                "The tokenizer of `model.path` has no chat template. Give it one, set "
                "`agent.renderer: plain`, or use policy.generate."
            )
        if not any(one.talk for one in self._all):
            return self.place_tokens(renderer.render(messages, tools), is_trained=is_trained)
        talk = [normal(message) for message in messages]
        able = [one for one in self._able(is_trained) if one.goes_on_as(talk, tools)]
        if able:
            found = max(able, key=lambda one: len(one.talk))
            past = _past(found.tokens, found.sampled, messages[: len(found.talk)])
            given = self._going_on(renderer, past, messages, tools)
            if given is not None:
                return Placed(found, given)
        self._check_room(lambda one: _why_messages(one, talk, tools, is_trained=is_trained))
        ends = [(one.last_end(talk, tools), one) for one in self._all]
        end, base = max(ends, key=lambda pair: pair[0], default=(None, None))
        if end is not None and base is not None and end.messages and self._keeps_history:
            before = base.tokens[: end.tokens]
            past = _past(before, base.length_at(end), messages[: end.messages])
            given = self._going_on(renderer, past, messages, tools)
            if given is not None:
                return Placed(None, before + given)
        return Placed(None, renderer.render(messages, tools))

    def _going_on(self, renderer: Renderer, past: Past, messages: Messages, tools: Any) -> list[int] | None:
        """The tokens after the past, with which these messages begin.

        None if these messages do not only append, or if the template writes the past differently and
        `agent.history: template`. Raises: whatever the template raises.
        """
        try:
            new = messages[len(past.messages) :]
            given = renderer.extend((past.sampled or past.prompt)[-1], new, tools, past=past)
        except ValueError:
            if self._keeps_history:
                raise
            return None
        if given is None or self._keeps_history:
            return given
        try:
            whole = renderer.render(messages, tools)
        except TEMPLATE_ERRORS:  # such as at a malformed call of the policy's, which lies in the past
            return given
        return given if renderer.text([*past.prompt, *past.sampled, *given]) == renderer.text(whole) else None

    def place_tokens(self, whole: Sequence[int], *, is_trained: bool) -> Placed:
        """The place of a request of token ids, which are the policy's whole context. Raises: ValueError."""
        if not whole:
            raise ValueError("The request has no tokens; expected at least one that the policy can answer.")
        able = [
            one for one in self._able(is_trained)
            if len(one.tokens) < len(whole) and whole[: len(one.tokens)] == one.tokens
        ]  # fmt: skip
        if able:
            found = max(able, key=lambda one: len(one.tokens))
            return Placed(found, list(whole[len(found.tokens) :]))
        self._check_room(lambda one: _why_tokens(one, whole, is_trained=is_trained))
        return Placed(None, list(whole))

    def cause(
        self, messages: Messages | None, whole: Sequence[int], tools: Any, *, is_trained: bool
    ) -> ForkCause:
        """Why a request of checked messages, or of token ids if None, began another conversation."""
        held = [one for one in self._all if one.is_trained == is_trained]
        if messages is None:
            return cause_of_tokens(held, whole)
        return cause_of(held, [normal(message) for message in messages], tools)

    def _able(self, is_trained: bool) -> list[Transcript]:
        return [one for one in self._all if not one.is_open and one.is_trained == is_trained]

    def _check_room(self, why: Callable[[Transcript], str]) -> None:
        """Raises: TooManyConversations if no further conversation is allowed."""
        if len(self._all) < self._most:
            return
        if self._most > 1:
            raise TooManyConversations(
                f"The request goes on from no conversation of the episode, and begins number "
                f"{self._most + 1}; agent.max_trajectories allows {self._most}."
            )
        raise TooManyConversations(
            f"{why(self._all[0])} An episode has one conversation, as agent.max_trajectories is 1."
        )


def _past(tokens: Sequence[int], sampled: int, messages: Messages) -> Past:
    return Past(tokens[: len(tokens) - sampled], tokens[len(tokens) - sampled :], messages)


def _why(one: Transcript, *, is_trained: bool) -> str:
    """Why no request can continue the only conversation; "" if one could."""
    if one.is_open:
        return "Two requests at once in one episode: await the first answer before asking again."
    if one.is_trained != is_trained:
        kinds = ("a conversation that is trained", "one that is not (policy.untrained)")
        begun, asked = kinds if one.is_trained else kinds[::-1]
        return f"The episode has {begun}, and this request is of {asked}."
    return ""


def _why_messages(one: Transcript, talk: Talk, tools: Any, *, is_trained: bool) -> str:
    """Why messages do not continue the only conversation."""
    if why := _why(one, is_trained=is_trained):
        return why
    same = one.shared(talk)
    if one.talk and not one.is_told:
        return "The conversation has tokens of policy.generate that are in none of its messages."
    if same == len(one.talk) < len(talk) and tools == one.tools:
        return "The renderer writes earlier turns otherwise than they were sampled."
    if same == len(one.talk) < len(talk):
        return "The tools are others than in the last request; give the same in every request."
    told: Any = talk[same] if same < len(talk) else "nothing"
    held = one.talk[min(same, len(one.talk) - 1)] if one.talk else "tokens"
    return (
        f"Message {same} is not what it was in the last request: {told!r:.100} instead of {held!r:.100}; "
        "append to the messages."
    )


def _why_tokens(one: Transcript, whole: Sequence[int], *, is_trained: bool) -> str:
    if why := _why(one, is_trained=is_trained):
        return why
    pairs = zip(whole, one.tokens, strict=False)
    same = next((place for place, (new, old) in enumerate(pairs) if new != old), len(whole))
    if same == len(one.tokens):
        return "The request adds nothing to the conversation that the policy has not answered yet."
    return (
        f"The request has {len(whole)} tokens, and differs at token {same} from the {len(one.tokens)} of the "
        "episode so far; append to its tokens."
    )
