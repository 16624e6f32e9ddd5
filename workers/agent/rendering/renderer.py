"""Renders messages into tokens and parses answers, by the chat template of the policy's tokenizer.

Invariants: sampled tokens are never encoded again: `extend` gives only the tokens after them. Message text
that spells a special token is encoded as ordinary text, so neither an environment nor the policy can forge
the end of a turn. Equal messages give equal tokens.
"""

import copy
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol, Self

from jinja2 import TemplateError

from workers.agent.messages import with_tool_names
from workers.agent.rendering.spelling import (
    Hidden,
    Messages,
    Tools,
    encoded,
    end_tokens,
    hide,
    text_of,
)
from workers.agent.rendering.tool_calls import READERS, CallReader, Parsed, parse
from workers.models.tokenizer import (
    is_written,
    plain_tokens,
    read_arguments,
    special_tokens,
    wants_text,
    with_all_written,
)

STAND_IN = "stand-in"
CALL_ID_CHARS = 9  # as the strictest templates require
TEMPLATE_ERRORS = (TemplateError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What a chat template raises at messages or tools that it cannot write: its filters raise Python's own."""


class Past(NamedTuple):
    """The past of a request: a turn, and the request that it answered."""

    prompt: Sequence[int]
    sampled: Sequence[int]
    messages: Messages
    """All of it; the last message is the turn."""


class Renderer(Protocol):
    """Turns conversations into tokens."""

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        """The tokens of a whole prompt, ready for the policy to continue."""
        ...

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        """The tokens between a sampled turn and the turn that answers these new messages.

        `last`: the last sampled token; `past`: everything before the new messages, for renderers that need
        it. None: these messages do not only append.
        """
        ...

    def parse(
        self,
        tokens: Sequence[int],
        *,
        reads_calls: bool = True,
        prompt: Sequence[int] = (),
        tools: Tools = None,
    ) -> Parsed:
        """The parts of an answer. `reads_calls`: parse tool calls; `prompt`, `tools`: of its request."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without a final token that ends the turn."""
        ...

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """A renderer with these arguments of the chat template. Raises: ValueError if it has no template."""
        ...


class TurnReader:
    """Parses answers with a tokenizer and a reader of tool calls."""

    def __init__(self, tokenizer: Any, read_calls: CallReader) -> None:
        self._tokenizer, self._read_calls = tokenizer, read_calls
        self._ends = end_tokens(tokenizer)

    def end_at(self, stops: Collection[int]) -> None:
        """Take these tokens, too, as ends of a turn: those at which the engines stop."""
        self._ends |= frozenset(stops)

    def parse(
        self,
        tokens: Sequence[int],
        *,
        reads_calls: bool = True,
        prompt: Sequence[int] = (),
        tools: Tools = None,
    ) -> Parsed:
        return parse(self.text(tokens), self._read_calls if reads_calls else READERS["none"])

    def text(self, tokens: Sequence[int]) -> str:
        return text_of(self._tokenizer, tokens, self._ends)


class TemplateRenderer(TurnReader):
    """Renders by the tokenizer's own chat template."""

    def __init__(self, tokenizer: Any, *, read_calls: CallReader = READERS["hermes"]) -> None:
        super().__init__(tokenizer, read_calls)
        self._special = special_tokens(tokenizer)
        self._ended: tuple[Tools, str] | None = None
        self._kwargs: Mapping[str, Any] = {}
        self._writes: dict[str, bool] = {}  # by role, or "tools"

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """A renderer with these arguments of the chat template; the renderer's own take precedence."""
        other = copy.copy(self)
        other._kwargs, other._ended, other._writes = kwargs, None, {}
        return other

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        safe, schemas, hidden = self._hide(self._written(with_tool_names(messages)), tools)
        return encoded(self._tokenizer, self._write(safe, schemas, is_prompt=True), hidden)

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int]:
        before = () if past is None else past.messages
        messages = self._written(with_tool_names(messages, before))
        called = _called(messages, before)
        stand_in = self._unused_text([messages, tools, called])
        (answer, *new), schemas, hidden = self._hide([_stand_in(stand_in, called), *messages], tools)
        behind = self._behind_turn(stand_in, schemas) + self._between(stand_in, answer, new, schemas)
        tokens = encoded(self._tokenizer, behind, hidden)
        return tokens if last is None or last not in self._ends else self._behind_end(last, tokens)

    def writes(self, what: str) -> bool:
        """Whether the template writes messages of a role, or `tools`."""
        if what not in self._writes:
            write = partial(self._write, is_prompt=True)
            self._writes[what] = is_written(what, write, self._unused_text(what))
        return self._writes[what]

    def _written(self, messages: Messages) -> Messages:
        """The messages, all of which the template writes; a developer's as the system's if it has no such.

        Raises: ValueError with a message for the user if the template leaves one out.
        """
        other = "set `agent.renderer` to one of the model's family, or say it in a message of another role"
        return with_all_written(messages, self.writes, otherwise=other)

    def _behind_end(self, end: int, tokens: list[int]) -> list[int]:
        """The tokens after a turn that has its end, which the template writes as well.

        It may write a space before it, as Llama 2 does.
        """
        place = tokens.index(end) if end in tokens else -1
        return tokens if self._tokenizer.decode(tokens[: max(place, 0)]).strip() else tokens[place + 1 :]

    # -- the stand-in -------------------------------------------------------------------------------------

    def _unused_text(self, told: Any) -> str:
        """A text for an answer that occurs neither in the template nor in `told`."""
        written = f"{self._tokenizer.chat_template}{json.dumps(told, default=str)}"
        texts = (f"{STAND_IN}-{n}" if n else STAND_IN for n in count())
        return next(text for text in texts if text not in written)

    def _behind_turn(self, stand_in: str, tools: Tools) -> str:
        """The template's text after an answer: the end of the turn, and perhaps a newline."""
        if self._ended is None or self._ended[0] != tools:  # 0.06 of the 0.14 ms of `extend`
            talk = [_user(), {"role": "assistant", "content": stand_in}]
            self._ended = tools, self._behind(stand_in, talk, tools, is_prompt=False)
        return self._ended[1]

    def _between(self, stand_in: str, answer: Mapping[str, Any], new: Messages, tools: Tools) -> str:
        """The template's text between a finished turn and the next one, with the new messages."""
        if "tool_calls" in answer:
            before = self._behind(stand_in, [_user(), answer], tools, is_prompt=False)
        else:
            before = self._behind_turn(stand_in, tools)
        whole = self._behind(stand_in, [_user(), answer, *new], tools, is_prompt=True)
        if not whole.startswith(before):
            raise ValueError(
                "The chat template writes an answer otherwise when messages follow it, so that a "
                "conversation cannot go on from its own tokens. Give the tokenizer another chat template."
            )
        return whole[len(before) :]

    def _behind(self, stand_in: str, talk: Messages, tools: Tools, *, is_prompt: bool) -> str:
        """The text after the stand-in; a template that thinks may write something else before it.

        A template that omits the content of an answer with calls has the stand-in in their arguments.
        """
        text = self._write(talk, tools, is_prompt=is_prompt)
        place = text.find(stand_in)
        if place < 0:
            raise ValueError(
                "The chat template leaves out what the assistant has said, so that nobody can tell where an "
                "answer ends. Give the tokenizer another chat template."
            )
        return text[place + len(stand_in) :]

    def _write(self, messages: Messages, tools: Tools, *, is_prompt: bool) -> str:
        ours = {"tokenize": False, "add_generation_prompt": is_prompt}
        told = {**self._kwargs, **({"tools": list(tools)} if tools else {}), **ours}
        if not wants_text(self._tokenizer):
            messages = [_with_objects(message) for message in messages]
        return self._tokenizer.apply_chat_template([*messages], **told)

    def _hide(self, messages: Messages, tools: Tools) -> Hidden:
        return hide(self._special, messages, tools)


class PlainRenderer(TurnReader):
    """For models without a chat template: the contents of messages in sequence, and nothing else."""

    def __init__(self, tokenizer: Any, *, read_calls: CallReader = READERS["none"]) -> None:
        super().__init__(tokenizer, read_calls)

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        texts = [message["content"] for message in messages]
        return [token for text in texts for token in plain_tokens(self._tokenizer, text)]

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int]:
        return self.render(messages, tools)

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """Raises: ValueError."""
        raise no_template("plain")


def no_template(renderer: str) -> ValueError:
    """The error for chat template arguments of a renderer without a template."""
    return ValueError(
        f"agent.renderer: `{renderer}` does not use the chat template, so that `chat_template_kwargs` cannot "
        "change what it writes. Leave agent.renderer `template`, or leave them out of `data` and the rows."
    )


def message_of(parsed: Parsed, tokens: Sequence[int]) -> dict[str, Any]:
    """An answer in the format of OpenAI's chat completions; equal tokens give equal call ids."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        digest = hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()
        made = [hashlib.sha256(f"{digest}{place}".encode()).hexdigest() for place in range(len(parsed.calls))]
        are_told = len({*parsed.ids} - {""}) == len(parsed.calls)  # a policy may write one twice
        ids = parsed.ids if are_told else [id[:CALL_ID_CHARS] for id in made]
        message["tool_calls"] = [
            {
                "id": id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for id, call in zip(ids, parsed.calls, strict=True)
        ]
    return message


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with call arguments as objects if they are JSON, as templates use `tojson`."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        arguments = read_arguments(call["function"]["arguments"])
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _user() -> dict[str, str]:
    return {"role": "user", "content": "question"}


def _called(new: Messages, past: Messages) -> dict[str, str]:
    """The calls that these messages answer: names by id."""
    ids: dict[str, None] = {}
    own: set[str] = set()
    for message in new:
        own |= {call["id"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and message["tool_call_id"] not in own:
            ids[message["tool_call_id"]] = None
    if not ids:
        return {}
    calls = (call for message in past for call in message.get("tool_calls") or ())
    names = {call["id"]: call["function"]["name"] for call in calls}
    return {id: names.get(id, "call") for id in ids}


def _stand_in(text: str, called: Mapping[str, str]) -> dict[str, Any]:
    """A stand-in for the answer before new messages, with the calls that they answer."""
    answer: dict[str, Any] = {"role": "assistant", "content": text}
    if called:
        answer["tool_calls"] = [_call(id, name, text) for id, name in called.items()]
    return answer


def _call(id: str, name: str, text: str) -> dict[str, Any]:
    arguments = json.dumps({text: text})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
