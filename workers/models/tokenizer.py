"""Loads a model's tokenizer; tells its end tokens, what no text may spell, and what its template drops.

Invariants: torch is not needed; a template that refuses a made-up conversation is taken to write it, as it
refuses real ones.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.files import is_file

TOOLS = "tools"
"""In the place of a role: the tools that the policy is offered."""
CALLS = "tool_calls"
"""In the place of a role: the tool calls of the assistant."""
REASONING = "reasoning_content"
"""In the place of a role: what the assistant has thought before its answer."""
ID = "aaaaaaaaa"  # of made-up conversations, as the next three
USER = {"role": "user", "content": "question"}
CALL = {"id": ID, "type": "function", "function": {"name": "call", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
MAX_ARGUMENT_DEPTH = 64  # levels of JSON in the arguments of a tool call

Write = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Writes messages and tools by the template."""


def load_tokenizer(directory: str) -> Any:
    """The tokenizer of a model directory, which decodes tokens without changes. Raises: ConfigError."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"The model directory {directory!r} has no tokenizer that transformers can load: {error}. "
            "Expected tokenizer.json and tokenizer_config.json; check `model.path`."
        ) from None
    # some families (Llama 3) have it on: `return ' '.join(x)` would come out as `return''.join(x)`
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def stop_tokens_of(directory: str, tokenizer: Any) -> frozenset[int]:
    """The tokens at which an engine ends a response; equal to `stop_tokens` of the loaded model.

    Raises: ConfigError if the model's files name none in a way that can be read.
    """
    found = _told_ends(Path(directory))
    return frozenset(end_tokens(tokenizer.eos_token_id if found is None else found, directory))


def end_tokens(told: object, directory: str | Path) -> list[int]:
    """The ids of an `eos_token_id`: none, one, or a list. Raises: ConfigError if it is anything else."""
    found: list[object] = [] if told is None else [*told] if isinstance(told, list | tuple) else [told]
    ids = [one for one in found if isinstance(one, int) and not isinstance(one, bool)]
    if len(ids) < len(found):
        raise ConfigError(
            f"The model at {directory} has {told!r:.80} as `eos_token_id`, in its generation_config.json or "
            "config.json; expected the id of the token that ends a response, or a list of such ids. Mend it "
            "there."
        )
    return ids


def _told_ends(directory: Path) -> object:
    """The end tokens of generation_config.json, else of the model's configuration; None without any."""
    from transformers import AutoConfig, GenerationConfig

    try:
        if is_file(file := directory / "generation_config.json"):
            return json.loads(file.read_bytes()).get("eos_token_id")
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception:  # raised by a library; loading the model reports the error
        return None
    return GenerationConfig.from_model_config(config).eos_token_id


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts of special tokens, which no message may spell, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {token.content for token in added if token.special} | {*tokenizer.all_special_tokens}
    return sorted(found, key=lambda token: (-len(token), token))


def plain_tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none of them special."""
    tokens = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    return [token for token in tokens if token not in ids]


def unused_mark(texts: Iterable[str]) -> str:
    """A private character that none of these texts has."""
    used = {character for text in texts for character in text}
    return next(mark for mark in map(chr, range(0xE000, 0xF900)) if mark not in used)


# -- arguments of tool calls: JSON in OpenAI's API, an object for most chat templates ------------------------


def read_arguments(text: str) -> Any:
    """The arguments read as JSON; the text itself if it is not JSON, or nested too deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    level: list[Any] = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    return text


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


@lru_cache(maxsize=256)
def wants_text(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template wants the arguments of calls as text.

    Such a template fails on an object (DeepSeek's), or prints it as Python does and not as JSON.
    """
    arguments = {"argument": "value"}
    as_object = _called_with(tokenizer, arguments)
    if as_object is None:
        return _called_with(tokenizer, json.dumps(arguments)) is not None
    return str(arguments) in as_object


def _called_with(tokenizer: Any, arguments: object) -> str | None:
    """A call with these arguments as the chat template writes it; None if it fails on them."""
    call = CALL | {"function": {"name": "call", "arguments": arguments}}
    try:
        return tokenizer.apply_chat_template([USER, CALLED | {CALLS: [call]}], tokenize=False)
    except Exception:  # templates raise whatever they like
        return None


# -- what a chat template leaves out: one that knows no tools may drop their answers unsaid ------------------


def is_written(what: str, write: Write, text: str) -> bool:
    """Whether the template writes the content of messages of a role, or `TOOLS`, `CALLS` or `REASONING`.

    `text`: one that is not in the template.
    """
    if what == TOOLS:
        return _is_in(text, write, [USER], [_tool(text)])
    said = {"role": what, "content": text}
    match what:
        case "tool":
            talk = [USER, CALLED, said | {"tool_call_id": ID, "name": "call"}]
        case "user":
            talk = [said]
        case "tool_calls":
            function = {"name": text, "arguments": {text: text}}
            talk = [USER, CALLED | {CALLS: [CALL | {"function": function}]}]
        case "reasoning_content":
            talk = [USER, {"role": "assistant", "content": "answer", REASONING: text}]
        case "assistant":
            talk = [USER, said, USER]
        case _:
            talk = [said, USER]
    return _is_in(text, write, talk, None) or _is_in(text, write, talk, [_tool("call")])


def with_all_written(
    messages: Sequence[Mapping[str, Any]], writes: Callable[[str], bool], *, otherwise: str
) -> Sequence[Mapping[str, Any]]:
    """The messages, all of which the template writes; a developer's as the system's if it has no such.

    `writes(role)`: whether the template writes messages of a role. Raises: ValueError with a message for the
    user, which ends with what `otherwise` advises, if the template leaves one out.
    """
    roles = {str(message["role"]) for message in messages if message.get("content")}
    left = {role for role in roles if not writes(role)}
    if left == {"developer"} and writes("system"):
        return [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]
    if left:
        raise ValueError(
            f"The chat template leaves out what messages of the role {min(left)} say, so that the policy "
            f"would not see it. Give the tokenizer another chat template, {otherwise}."
        )
    return messages


def with_joined_parts(messages: Sequence[Any]) -> list[Any]:
    """The messages with contents that are lists of text parts as texts: many templates print such a list.

    Raises: ValueError with a message for the user if a part is no text.
    """
    joined: list[Any] = []
    for place, message in enumerate(messages):
        content: Any = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts: list[Any] = content
            found = (part.get("text") if isinstance(part, dict) else part for part in parts)
            texts = [text for text in found if isinstance(text, str)]
            if len(texts) < len(parts):
                raise ValueError(
                    f"Message {place} of the prompt has the content {content!r:.80}; expected text, or a "
                    "list of text parts. Images and audio are not supported."
                )
            message = {**message, "content": "".join(texts)}
        joined.append(message)
    return joined


@lru_cache(maxsize=256)
def tokenizer_writes(tokenizer: Any, role: str) -> bool:
    """Whether the tokenizer's own chat template writes the content of messages of a role."""

    def write(talk: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        return tokenizer.apply_chat_template(talk, tools=tools, tokenize=False, add_generation_prompt=True)

    template = str(tokenizer.chat_template)
    return is_written(role, write, next(text for n in count() if (text := f"brief{n}") not in template))


def _is_in(text: str, write: Write, talk: Sequence[Mapping[str, Any]], tools: Any) -> bool:
    try:
        return text in write(talk, tools)
    except Exception:  # templates raise whatever they like, and refuse real conversations so, too
        return True


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}
