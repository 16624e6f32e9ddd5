"""Messages to tokens and back, by the chat template of the policy's tokenizer.

Invariants: what was sampled is never encoded again: `extend` gives only what stands behind it. Text of
messages that spells a special token is encoded as ordinary text, so that neither an environment nor the
policy can forge the end of a turn. Equal messages give equal tokens.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from workers.agent.messages import read_arguments, replaced, texts_of
from workers.agent.rendering.tool_calls import READERS, CallReader, Parsed, parse

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

STAND_IN = "stand-in"
CALL_ID_CHARS = 9  # as the strictest templates want them


class Past(NamedTuple):
    """What a request goes on from: a turn, and the request that it answered."""

    prompt: Sequence[int]
    sampled: Sequence[int]
    messages: Messages
    """All of it; the last one is the turn."""


class Renderer(Protocol):
    """What turns a conversation into tokens."""

    @property
    def forged(self) -> int:
        """Special tokens that texts have spelt so far."""
        ...

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        """The whole prompt, ready to be continued."""
        ...

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        """What stands between a sampled turn and the turn that answers these new messages.

        `last`: the last token that was sampled; `past`: all before the new messages, for those that want to
        see it. None: these messages do not only append.
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
        """What a turn says. `reads_calls`: tool calls are told from text; the rest: of its request."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """What they spell, but for one at the end that ends the turn."""
        ...


class TemplateRenderer:
    """The stock chat template of a tokenizer."""

    def __init__(self, tokenizer: Any, *, read_calls: CallReader = READERS["hermes"]) -> None:
        self._tokenizer, self._read_calls = tokenizer, read_calls
        self._special = special_tokens(tokenizer)
        self._ends = end_tokens(tokenizer)
        self._ended: tuple[Tools, str] | None = None
        self.forged = 0

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        safe, schemas, hidden = self._hide(messages, tools)
        return encoded(self._tokenizer, self._write(safe, schemas, is_prompt=True), hidden)

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int]:
        new, schemas, hidden = self._hide(messages, tools)
        behind = self._behind_turn(schemas) + self._between(new, schemas)
        tokens = encoded(self._tokenizer, behind, hidden)
        # a turn that was cut off lacks its end, which the template writes; one that ended by itself has it
        return tokens[1:] if last is not None and last in self._ends and tokens[:1] == [last] else tokens

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

    # -- the stand-in -------------------------------------------------------------------------------------

    def _behind_turn(self, tools: Tools) -> str:
        """What the template writes behind the text of an answer: the end of the turn, and a newline maybe."""
        if self._ended is None or self._ended[0] != tools:  # 0.06 of the 0.14 ms of `extend`
            talk = [_user(), {"role": "assistant", "content": STAND_IN}]
            self._ended = tools, self._behind(talk, tools, is_prompt=False)
        return self._ended[1]

    def _between(self, new: Messages, tools: Tools) -> str:
        """What the template writes between a finished turn and the next one, new messages included."""
        answer: dict[str, Any] = {"role": "assistant", "content": STAND_IN}
        if ids := [message["tool_call_id"] for message in new if message["role"] == "tool"]:
            answer["tool_calls"] = [_call(id) for id in ids]
            before = self._behind([_user(), answer], tools, is_prompt=False)
        else:
            before = self._behind_turn(tools)
        whole = self._behind([_user(), answer, *new], tools, is_prompt=True)
        if not whole.startswith(before):
            raise ValueError(
                "The chat template writes an answer otherwise when messages follow it, so that a "
                "conversation cannot go on from its own tokens. Give the tokenizer another chat template."
            )
        return whole[len(before) :]

    def _behind(self, talk: Messages, tools: Tools, *, is_prompt: bool) -> str:
        """What stands behind the stand-in; a template that thinks may write something else before it."""
        text = self._write(talk, tools, is_prompt=is_prompt)
        place = text.find(STAND_IN)
        assert place >= 0, "the template leaves the content of an answer out"
        return text[place + len(STAND_IN) :]

    def _write(self, messages: Messages, tools: Tools, *, is_prompt: bool) -> str:
        return self._tokenizer.apply_chat_template(
            [_for_template(message) for message in messages],
            tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=is_prompt,
        )  # fmt: skip

    def _hide(self, messages: Messages, tools: Tools) -> "Hidden":
        safe, count = hide(self._special, messages, tools)
        self.forged += count
        return safe


class PlainRenderer:
    """For models without a chat template: the contents of messages one behind the other, and nothing else."""

    def __init__(self, tokenizer: Any, *, read_calls: CallReader = READERS["none"]) -> None:
        self._tokenizer, self._read_calls = tokenizer, read_calls
        self._special, self._ends = special_tokens(tokenizer), end_tokens(tokenizer)
        self.forged = 0

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        texts = [message["content"] for message in messages]
        self.forged += sum(text.count(token) for token in self._special for text in texts)
        return [token for text in texts for token in plain_tokens(self._tokenizer, text)]

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int]:
        return self.render(messages, tools)

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


class Hidden(NamedTuple):
    """Messages and tools with another text where one spells a special token."""

    messages: Messages
    tools: Tools
    stand_ins: Mapping[str, str]
    """What such a text stands for."""


def hide(special: Sequence[str], messages: Messages, tools: Tools) -> tuple[Hidden, int]:
    """The same without these tokens' texts, longest first, and how often they were spelt."""
    texts = [*texts_of(messages), *texts_of(tools or ())]
    spelt = [token for token in special if any(token in text for text in texts)]
    if not spelt:
        return Hidden(messages, tools, {}), 0
    mark = _unused_mark(texts)
    hidden = {token: f"{mark}{place}{mark}" for place, token in enumerate(spelt)}
    safe = replaced(messages, hidden), replaced(tools, hidden) if tools else tools
    count = sum(text.count(token) for token in spelt for text in texts)
    return Hidden(*safe, {stand_in: token for token, stand_in in hidden.items()}), count


def encoded(tokenizer: Any, text: str, hidden: Mapping[str, str]) -> list[int]:
    """The tokens of what was written of hidden messages: what was hidden is ordinary text."""
    if not hidden:
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, hidden)) + ")", text):
        if part in hidden:
            tokens += plain_tokens(tokenizer, hidden[part])
        elif part:
            tokens += tokenizer(part, add_special_tokens=False)["input_ids"]
    return tokens


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts of the tokens that no message may spell, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {token.content for token in added if token.special} | {*tokenizer.all_special_tokens}
    return sorted(found, key=lambda token: (-len(token), token))


def end_tokens(tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn."""
    return frozenset(() if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,))


def text_of(tokenizer: Any, tokens: Sequence[int], ends: frozenset[int]) -> str:
    """The text of a turn, without the token that ended it."""
    kept = list(tokens[:-1]) if tokens and tokens[-1] in ends else list(tokens)
    return tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def plain_tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none of them special, whatever it spells."""
    tokens = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    return [token for token in tokens if token not in ids]


def message_of(parsed: Parsed, tokens: Sequence[int]) -> dict[str, Any]:
    """An answer as OpenAI's chat completions have it; equal tokens give equal ids of calls."""
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


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as objects where they are JSON: templates write them with `tojson`."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        arguments = read_arguments(call["function"]["arguments"])
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _user() -> dict[str, str]:
    return {"role": "user", "content": "question"}


def _call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "call", "arguments": "{}"}}


def _unused_mark(texts: Iterable[str]) -> str:
    used = {character for text in texts for character in text}
    return next(mark for mark in map(chr, range(0xE000, 0xF900)) if mark not in used)
