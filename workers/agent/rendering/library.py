"""Wraps the renderers of the library `renderers`, one per model family, with checks of their results.

Invariants: the library gets texts that spell no token which separates turns, and a tokenizer that encodes the
original texts as ordinary tokens; its extension is used only if it begins with all given and sampled tokens;
its exceptions and invalid results are errors that name the configuration key.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from protocol.agents.renderers import EXTRA
from protocol.blame import shown, what
from protocol.errors import ConfigError
from workers.agent.messages import whole_text, with_tool_names
from workers.agent.rendering.own import RENDERER, called, ids_of
from workers.agent.rendering.renderer import STAND_IN, Past, no_template
from workers.agent.rendering.spelling import (
    Hidden,
    Messages,
    Tools,
    end_tokens,
    hide,
    text_of,
)
from workers.agent.rendering.tool_calls import Parsed, ToolCall
from workers.models.tokenizer import plain_tokens, special_tokens

WITHIN_A_TURN = re.compile("think|tool|arg")
"""Tokens that separate thoughts and calls within an answer, but not turns."""
USER = {"role": "user", "content": STAND_IN}


class GuardedTokenizer:
    """The tokenizer for the library: encodes hidden texts as ordinary tokens, and notes token lookups."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content for token in getattr(tokenizer, "added_tokens_decoder", {}).values()}
        self.name_or_path = str(getattr(tokenizer, "name_or_path", ""))
        self.unk_token_id, self.eos_token_id = tokenizer.unk_token_id, tokenizer.eos_token_id
        self.asked: dict[str, int] = {}
        """Added tokens that the library has looked up by their text, and so writes itself."""
        self.stand_ins: Mapping[str, str] = {}

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """The tokens of a text without special tokens around it: a renderer writes those itself."""
        tokens: list[int] = []
        text = whole_text(text)
        hidden = "|".join(map(re.escape, self.stand_ins))
        for part in re.split(f"({hidden})", text) if hidden else [text]:
            if part in self.stand_ins:
                tokens += self._ordinary(self.stand_ins[part])
            elif part:
                tokens += self._tokenizer(part, add_special_tokens=False)["input_ids"]
        if text in self._added and len(tokens) == 1:
            self.asked[text] = tokens[0]
        return tokens

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        """As the tokenizer does."""
        return self._tokenizer.decode(token_ids, *args, **kwargs)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """As the tokenizer does."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._tokenizer.convert_tokens_to_ids(tokens)
        if found is not None and found != self.unk_token_id:
            self.asked[tokens] = found
        return found

    def _ordinary(self, text: str) -> list[int]:
        """The ordinary tokens of a text; the token of the whole text is avoided, special or not."""
        tokens = plain_tokens(self._tokenizer, text)
        if not {*tokens} & {*self.asked.values()}:
            return tokens
        return [*plain_tokens(self._tokenizer, text[:1]), *plain_tokens(self._tokenizer, text[1:])]


class LibraryRenderer:
    """A renderer of the library, for one tokenizer."""

    def __init__(self, name: str, tokenizer: Any, stops: Collection[int] = ()) -> None:
        """`stops`: the tokens at which the engines stop.

        Raises: ConfigError if the library, its renderer or a token of the renderer is missing.
        """
        self._name, self._tokenizer, self._guard = name, tokenizer, GuardedTokenizer(tokenizer)
        self._theirs = make(name, self._guard)
        self._stops = frozenset(ids_of(self._call("get_stop_token_ids"), "get_stop_token_ids"))
        self.ends = self._stops | end_tokens(tokenizer, stops)
        """Tokens that end a turn."""
        self._structure: tuple[int, list[str]] = (-1, [])

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        safe = self._hide(_named(messages), tools)
        given = self._call(
            "render_ids", [*safe.messages], tools=_listed(safe.tools), add_generation_prompt=True
        )
        tokens = ids_of(given, "render_ids")
        if not tokens:
            raise ValueError(f"{RENDERER}: `render_ids` gave no tokens; expected a prompt.")
        return tokens

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        past = past or self._stand_in(last)
        safe = self._hide(_named([*past.messages, *messages])[len(past.messages) :], tools)
        prompt, sampled, new = [*past.prompt], [*past.sampled], [*safe.messages]
        before = prompt + sampled
        given = self._call("bridge_to_next_turn", prompt, sampled, new, tools=_listed(safe.tools))
        if given is None:
            return None
        tokens = ids_of(getattr(given, "token_ids", given), "bridge_to_next_turn")
        return (
            tokens[len(before) :] if len(tokens) > len(before) and tokens[: len(before)] == before else None
        )

    def parse(
        self,
        tokens: Sequence[int],
        *,
        reads_calls: bool = True,
        prompt: Sequence[int] = (),
        tools: Tools = None,
    ) -> Parsed:
        if not reads_calls:
            return Parsed(self.text(tokens), "", (), 0)
        is_ended_otherwise = bool(tokens) and tokens[-1] in self.ends - self._stops
        said = [*tokens[:-1]] if is_ended_otherwise else [*tokens]
        found = self._call("parse_response", said, tools=_listed(tools), prompt_ids=[*prompt] or None)
        content, thought = getattr(found, "content", None), getattr(found, "reasoning_content", None) or ""
        calls = getattr(found, "tool_calls", None)
        if not (isinstance(content, str) and isinstance(thought, str) and isinstance(calls, list)):
            raise ValueError(
                f"{RENDERER}: `parse_response` gave {shown(found)}; expected `content`, `reasoning_content` "
                "and `tool_calls`."
            )
        unreadable = sum(getattr(call, "status", "ok") != "ok" for call in calls)
        ids = tuple(id if isinstance(id := getattr(call, "id", None), str) else "" for call in calls)
        return Parsed(content, thought, tuple(map(_call_of, calls)), unreadable, ids)

    def text(self, tokens: Sequence[int]) -> str:
        return text_of(self._tokenizer, tokens, self.ends)

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """Raises: ValueError."""
        raise no_template(self._name)

    @property
    def structure(self) -> list[str]:
        """The texts that no message may contain, longest first."""
        asked = self._guard.asked
        if self._structure[0] != len(asked):
            own = {text for text, id in asked.items() if id in self.ends or not WITHIN_A_TURN.search(text)}
            found = own | {*special_tokens(self._tokenizer)}
            self._structure = len(asked), sorted(found, key=lambda token: (-len(token), token))
        return self._structure[1]

    def _hide(self, messages: Messages, tools: Tools) -> Hidden:
        safe = hide(self.structure, messages, tools)
        self._guard.stand_ins = dict(safe.stand_ins) | {
            _escaped(stand_in): _escaped(token) for stand_in, token in safe.stand_ins.items()
        }
        return safe

    def _stand_in(self, last: int | None) -> Past:
        """A made-up past, for requests without one."""
        sampled = self._guard.encode(STAND_IN)
        return Past(self.render([USER], None), [*sampled, *([] if last is None else [last])], ())

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        return called(RENDERER, getattr(self._theirs, name), *arguments, **named)


def make(name: str, guard: GuardedTokenizer) -> Any:
    """A renderer of the library. Raises: ConfigError."""
    try:
        from renderers import config_from_name, create_renderer  # an extra

        logging.getLogger("renderers").setLevel(logging.WARNING)
    except ImportError as error:
        raise ConfigError(
            f"{RENDERER}: `{name}` is of the library `renderers`, which cannot be imported here: {error}. "
            f"Install it: pip install -e '.[{EXTRA}]', or leave agent.renderer `template`."
        ) from error
    try:
        config = config_from_name(name)
        # a turn goes on after thoughts, too; `agent.history` says what becomes of those
        return create_renderer(guard, type(config)(thinking_retention="all"))
    except Exception as error:  # whatever the library raises: assertions, too
        raise ConfigError(
            f"{RENDERER}: the library's `{name}` cannot be made for this tokenizer: {_line(what(error))}. "
            "Expected the tokenizer of a model of that family, and a version of the library that has it; "
            "`template` takes any chat template."
        ) from error


def _named(messages: Messages) -> list[dict[str, Any]]:
    return json.loads(json.dumps([*with_tool_names(messages)]))


def _listed(tools: Tools) -> list[dict[str, Any]] | None:
    return json.loads(json.dumps([*tools])) if tools else None


def _call_of(call: Any) -> ToolCall:
    """A call of the library as a ToolCall; an unreadable one with its raw text."""
    name, arguments = getattr(call, "name", None), getattr(call, "arguments", None)
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        arguments = str(getattr(call, "raw", ""))
    return ToolCall(name if isinstance(name, str) else "", arguments)


def _escaped(text: str) -> str:
    """The text with JSON escapes, as ASCII."""
    return json.dumps(text)[1:-1]


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
