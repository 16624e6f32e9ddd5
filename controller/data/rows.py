"""Checks rows of data and turns them into the JSON that workers get.

Invariants: a row becomes JSON in UTF-8, or a filter leaves it out, or it is refused with its place; equal
rows give equal JSON."""

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from string import Formatter
from typing import Any

from controller.config.data import RowSettings, template_columns
from protocol.errors import ConfigError

SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN_CHARS = 80
OF_TEMPLATES = ("prompt", "messages", "response", "tools")
"""Columns that chat templates write, with what is inside them."""
MAY_LACK = (*OF_TEMPLATES, "chat_template_kwargs")
"""Columns in which null stands for a key that a mapping lacks, where a table is padded."""
OF_ANSWERS = ("messages", "response")
"""Columns of which one has what is trained on in a supervised run."""
ENDS_WITH_AN_ANSWER = (
    "expected a conversation that ends with an answer of the assistant, which is what is trained on"
)
NAME_THE_ANSWER = "Name the column that holds it: `data.columns: {response: answer}`."


class UnusableRow(ConfigError):
    """A row with an empty prompt or response, or a value that JSON in UTF-8 lacks (half a character, nan)."""


class RowShape:
    """Turns rows of one source into the JSON that workers get."""

    def __init__(
        self,
        settings: RowSettings,
        *,
        source: str = "",
        is_supervised: bool = False,
        is_held_out: bool = False,
        is_for_agent: bool = False,
        is_padded: bool = False,
    ) -> None:
        """`source`: written into the column of this name, unless empty.

        `is_supervised`: a row has a `response` too, unless it `is_held_out`; `is_for_agent`: a row needs no
        `prompt`, since an agent makes its own from any row; `is_padded`: null in a conversation or a tool
        stands for a key that a mapping lacks (`Table.is_padded`).
        """
        self._settings = settings
        self._is_for_agent, self._is_padded = is_for_agent, is_padded
        self._source, self._is_supervised, self._is_held_out = source, is_supervised, is_held_out
        self._of_template = template_columns(settings.prompt)

    def shaped(self, place: str, row: object) -> bytes | None:
        """The row as JSON in UTF-8; None if a filter leaves it out. `place` names it in errors.

        Raises: ConfigError; UnusableRow if only this row is wrong.
        """
        settings = self._settings
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{place} is {type(row).__name__} {str(row)[:SHOWN_CHARS]!r}; expected an object with a "
                "`prompt` column."
            )
        kept = self._renamed(place, row)
        kept.update({name: _listed(kept[name]) for name in OF_TEMPLATES if name in kept})
        if self._is_padded:
            kept.update({name: _unpadded(kept[name]) for name in MAY_LACK if name in kept})
        for name, some in settings.where.items():  # the next column only if this one is as it should be
            if _compared(_column(place, kept, name, "where")) not in some:
                return None
        if settings.prompt:
            kept["prompt"] = self._filled(place, kept)
        if self._is_supervised and not (self._is_held_out and kept.keys().isdisjoint(OF_ANSWERS)):
            kept = _with_response(place, kept)
        if "prompt" in kept or not self._is_for_agent:
            _check_prompt(place, kept)
            if not self._is_in_bounds(kept["prompt"]):
                return None
            self._add_chat(place, kept)
        if self._is_for_agent or isinstance(kept["prompt"], list):
            self._add_template_kwargs(place, kept)
        if self._source:
            kept["source"] = self._source
        return _written(place, kept)

    def _renamed(self, place: str, row: Mapping[str, Any]) -> dict[str, Any]:
        columns = self._settings.columns
        found = {name: inside(row, column) for name, column in columns.items()}
        missing = [columns[name] for name, values in found.items() if not values]
        if missing:
            raise ConfigError(
                f"{place} has no column {missing[0]!r}, which data.columns names; it has "
                f"{sorted(map(str, row))}."
            )
        kept = {name: value for name, value in row.items() if name not in columns.values()}
        kept.update({name: values[0] for name, values in found.items()})
        return kept

    def _filled(self, place: str, row: Mapping[str, Any]) -> str:
        values = {name: _column(place, row, name, "prompt") for name in self._of_template}
        odd = [name for name, value in values.items() if isinstance(value, Mapping | list) or value is None]
        if odd:
            raise ConfigError(
                f"{place} has {str(values[odd[0]])[:SHOWN_CHARS]!r} in the column {odd[0]!r}, which the "
                "template data.prompt puts into the prompt; expected text or a number."
            )
        parts = Formatter().parse(self._settings.prompt)
        return "".join(text + (str(values[name]) if name is not None else "") for text, name, _, _ in parts)

    def _is_in_bounds(self, prompt: str | list[dict[str, Any]]) -> bool:
        least, most = self._settings.min_chars, self._settings.max_chars
        if not least and not most:
            return True
        texts = [prompt] if isinstance(prompt, str) else [_joined(one["content"]) for one in prompt]
        length = sum(len(text) for text in texts if isinstance(text, str))
        return least <= length and (not most or length <= most)

    def _add_chat(self, place: str, row: dict[str, Any]) -> None:
        settings, prompt = self._settings, row["prompt"]
        if isinstance(prompt, str) and (settings.is_chat or settings.system):
            prompt = row["prompt"] = [{"role": "user", "content": prompt}]
        if isinstance(prompt, str):
            return
        if settings.system and prompt[0]["role"] != "system":
            row["prompt"] = [{"role": "system", "content": settings.system}, *prompt]
        if settings.tools and not row.get("tools"):
            row["tools"] = settings.tools

    def _add_template_kwargs(self, place: str, row: dict[str, Any]) -> None:
        wanted, own = self._settings.chat_template_kwargs, row.get("chat_template_kwargs") or {}
        if not wanted and not (self._is_for_agent and own):
            return
        if not isinstance(own, Mapping):
            raise ConfigError(
                f"{place} has {str(own)[:SHOWN_CHARS]!r} as `chat_template_kwargs`; expected a mapping, such "
                "as {enable_thinking: false}. A column that is something else needs another name: "
                "`data.columns`."
            )
        row["chat_template_kwargs"] = {**wanted, **own}


def _column(place: str, row: Mapping[str, Any], name: str, key: str) -> Any:
    if not (found := inside(row, name)):
        raise ConfigError(
            f"{place} has no column {name!r}, which data.{key} names; it has {sorted(map(str, row))}."
        )
    return found[0]


def inside(row: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The value of a column in a tuple, or () if there is none; a dot in its name leads into a mapping."""
    if name in row:
        return (row[name],)
    outer, dot, inner = name.partition(".")
    return inside(row[outer], inner) if dot and isinstance(row.get(outer), Mapping) else ()


def _unpadded(value: Any) -> Any:
    """The value without nulls for keys that a mapping lacks, but for the content of a message."""
    if isinstance(value, Mapping):
        kept = {name: part for name, part in value.items() if part is not None or name == "content"}
        return {name: _unpadded(part) for name, part in kept.items()}
    return [*map(_unpadded, value)] if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    """The value with lists in place of the arrays that rows of pandas have for lists, at any depth."""
    if isinstance(value, Mapping):
        return {name: _listed(part) for name, part in value.items()}
    if getattr(value, "ndim", 0) and _is_of_arrays(value):
        value = value.tolist()
    return [*map(_listed, value)] if isinstance(value, list) else value


def _compared(value: Any) -> Any:
    """The value as a filter has it: lists for arrays, and a date or a time, also one of numpy, as text."""
    plain = value.tolist() if _is_of_arrays(value) else value
    return _plain(plain) if isinstance(plain, date | time) else _listed(value)


def _is_of_arrays(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(value, "tolist")


def _check_prompt(place: str, kept: Mapping[str, Any]) -> None:
    if not _is_prompt(kept.get("prompt")):
        hint = "Name the column that holds it: `data.columns: {prompt: question}`."
        was = (
            f"{str(kept['prompt'])[:SHOWN_CHARS]!r} as `prompt`"
            if "prompt" in kept
            else f"columns {sorted(map(str, kept))}"
        )
        is_empty = "prompt" in kept and _is_empty(kept["prompt"], str, list)
        raise (UnusableRow if is_empty else ConfigError)(
            f"{place} has {was}; expected a `prompt` that is a string, or a list of messages with "
            f"`role` and `content`, not empty. {hint}"
        )


def _written(place: str, kept: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        return text.encode()
    except UnicodeEncodeError:
        raise UnusableRow(f"{place} {no_text(kept)}") from None
    except ValueError as error:  # a number that is none, or a value that contains itself
        odd = [name for name, value in kept.items() if not _is_json(value)]
        text = f"{place} cannot be written as JSON, because of {', '.join(map(repr, odd))}: {error}."
        raise UnusableRow(f"{text} Expected plain values.") from error
    except TypeError as error:
        odd = [name for name, value in kept.items() if not _is_json(value)]
        why = f", because of {', '.join(map(repr, odd))}" if odd else ""
        raise ConfigError(
            f"{place} cannot be written as JSON{why}: {error}. Expected plain values: text, numbers, "
            "lists and mappings with names. Leave such a column out of the data, or make text of it."
        ) from error


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_plain)
    except (ValueError, TypeError):
        return False
    return True


def _plain(value: Any) -> object:  # whatever a row holds
    """JSON for types that Parquet has and JSON lacks, and for those of numpy and torch that programs give.

    Raises: TypeError for any other type.
    """
    if _is_of_arrays(value):
        return value.tolist()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def no_text(row: Mapping[str, object]) -> str | None:
    """What is wrong with a row that holds half of a character; None if all its texts are whole."""
    for name, value in row.items():
        if found := SURROGATE.search(json.dumps([name, value], ensure_ascii=False, default=str)):
            return (
                f"has U+{ord(found[0]):04X} in {ascii(name)[1:-1]!r}, which is half of a character (a lone "
                "surrogate) and cannot be written as UTF-8; expected text. Mend it where the data is made."
            )
    return None


def _with_response(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row with `prompt` and `response`; a conversation in `messages` is split before its last answer.

    `response` is text, or the answer's whole message where that has more than its text; in a row it may be a
    list of that message alone.
    """
    talk = row.get("messages")
    if isinstance(talk, list) and _is_prompt(talk):
        kept = {name: value for name, value in row.items() if name != "messages"}
        return kept | {"prompt": talk[:-1], "response": _last_answer(place, talk)}
    if _is_empty(talk, list) and "messages" in row and "response" not in row:
        raise UnusableRow(f"{place} has {talk!r} as `messages`; {ENDS_WITH_AN_ANSWER}.")
    if "response" not in row:
        columns = sorted(map(str, row))
        was = f"columns {columns}; expected a `response`, which `trainer.algorithm: sft` trains on"
        if "messages" in row:
            was = (
                f"{str(talk)[:SHOWN_CHARS]!r} as `messages`; expected a list of messages, each with `role` "
                "and `content`, or a `response` beside a `prompt`"
            )
        raise ConfigError(f"{place} has {was}. {NAME_THE_ANSWER}")
    said, prompt = row["response"], row.get("prompt")
    if isinstance(said, list) and isinstance(prompt, list) and len(said) == 1 and _is_prompt(prompt + said):
        return row | {"response": _last_answer(place, prompt + said)}  # as TRL's `completion`
    _check_answer(place, said, "`response`", hint=f" {NAME_THE_ANSWER}")
    return row


def _last_answer(place: str, talk: list[Any]) -> str | dict[str, Any]:
    """The last answer of a conversation: its text, or the message if it has more, as `reasoning_content`.

    Null and empty values are left out, as Parquet writes them for keys that a message lacks.
    """
    if len(talk) < 2 or talk[-1]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in talk)
        raise UnusableRow(f"{place} has `messages` of {roles}; {ENDS_WITH_AN_ANSWER}.")
    answer = {name: value for name, value in talk[-1].items() if not _is_empty(value, list, dict)}
    answer["content"] = _joined(answer.get("content", ""))
    if answer["content"] or not answer.get("tool_calls"):
        _check_answer(place, answer["content"], "the content of the last of its `messages`")
    return answer if answer.keys() - {"role", "content"} else answer["content"]


def _joined(content: Any) -> Any:
    """The text of a content that is a list of text parts; any other content as it is."""
    parts: list[Any] = content if isinstance(content, list) else []
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(texts) if texts and all(isinstance(text, str) for text in texts) else content


def _check_answer(place: str, said: object, name: str, *, hint: str = "") -> None:
    """Raises: ConfigError; UnusableRow if there is nothing to train on."""
    if not isinstance(said, str) or not said:
        raise (UnusableRow if _is_empty(said, str, list) else ConfigError)(
            f"{place} has {str(said)[:SHOWN_CHARS]!r} as {name}; expected text, not empty, which "
            f"`trainer.algorithm: sft` trains on.{hint}"
        )


def _is_empty(value: Any, *kinds: type) -> bool:
    """Whether it is null, or empty and of these kinds. A number of numpy cannot be compared with a list."""
    return value is None or (isinstance(value, kinds) and not value)


def _is_prompt(value: object) -> bool:
    if isinstance(value, str):
        return bool(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) and "content" in m for m in value)
    )
