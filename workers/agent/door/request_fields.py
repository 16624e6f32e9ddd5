"""Takes fields out of a request, and refuses what cannot be obeyed.

Invariant: pure; a field that would change the answer is obeyed or refused by name, and never ignored
silently.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.settings import SamplingSettings
from workers.agent.door.refusal import DoorRefusal

SAMPLED: dict[str, Callable[[SamplingSettings], Any]] = {
    "temperature": lambda sampling: sampling.temperature,
    "top_p": lambda sampling: sampling.top_p,
    "top_k": lambda sampling: sampling.top_k,
    "min_p": lambda sampling: sampling.min_p,
    "min_tokens": lambda sampling: sampling.min_tokens,
    "frequency_penalty": lambda _: 0,
    "presence_penalty": lambda _: 0,
    "repetition_penalty": lambda _: 1,
}
"""Sampling fields, and their values in the run: training assumes the run's own distribution."""
Constraints = Mapping[str, tuple[tuple[Any, ...], tuple[type, ...]]]
"""Fields that bind what may be sampled: the values that do not, and the types of those that do."""
Only = Mapping[str, tuple[Any, ...]]
"""Fields that are accepted with these values only."""
OF_THE_ROW = (
    "Leave it out, and set `data.chat_template_kwargs`, or a column of this name: all requests of an episode "
    "are rendered alike."
)
UNLIMITED_TOP_K = (-1, 0)


def check_sampling(
    fields: dict[str, Any], sampling: SamplingSettings, *, is_refusing: bool
) -> tuple[str, ...]:
    """Remove the sampling fields; returns the names of those that differ from the run's.

    `is_refusing`: refuse these instead. Raises: DoorRefusal.
    """
    found = {name: (fields.pop(name), own(sampling)) for name, own in SAMPLED.items() if name in fields}
    if "stop" in fields:
        stop = fields.pop("stop")
        found["stop"] = [stop] if isinstance(stop, str) else stop, [*sampling.stop]
    disobeyed = tuple(name for name, (wanted, own) in found.items() if not _is_same(name, wanted, own))
    if disobeyed and is_refusing:
        name = disobeyed[0]
        wanted, own = found[name]
        remedy = "Leave it out"
        if name in SamplingSettings.model_fields:
            remedy += f", set `rollout.sampling.{name}`,"
        raise DoorRefusal(
            400,
            f"`{name}` is {wanted!r:.80}; this run samples with {own!r}, and trains that distribution. "
            f"{remedy} or set `agent.other_sampling: ignore`.",
            param=name,
            code="unsupported_value",
        )
    return disobeyed


def _is_same(name: str, wanted: Any, own: Any) -> bool:
    if isinstance(wanted, bool):
        return False
    if name == "stop" and isinstance(wanted, list) and all(isinstance(text, str) for text in wanted):
        return {*wanted} == {*own}
    return wanted == own or (name == "top_k" and wanted in UNLIMITED_TOP_K and own in UNLIMITED_TOP_K)


def check_constraints(
    fields: Mapping[str, Any], constraints: Constraints, *, is_refusing: bool
) -> tuple[str, ...]:
    """The names of constraints on the answer, which the policy does not sample under.

    `is_refusing`: refuse these instead. Raises: DoorRefusal.
    """
    disobeyed = []
    for name, (free, types) in constraints.items():
        if name not in fields or _is_one_of(fields[name], free):
            continue
        if is_refusing or not isinstance(fields[name], types):
            expected = " or ".join([*map(repr, free), *(() if free else ("none",))])
            raise DoorRefusal(
                400,
                f"`{name}` is {fields[name]!r:.80}; expected {expected}: the policy samples without "
                "constraints, and that distribution is trained. Leave it out, or set `agent.other_sampling: "
                "ignore`; then the answer need not obey it, and your code has to check.",
                param=name,
                code="unsupported_value",
            )
        disobeyed.append(name)
    return tuple(disobeyed)


def _is_one_of(wanted: Any, values: tuple[Any, ...]) -> bool:
    return any(wanted == value and type(wanted) is type(value) for value in values)


def check_only(fields: Mapping[str, Any], only: Only) -> None:
    """Refuse other values than these. Raises: DoorRefusal."""
    for name, values in only.items():
        if name not in fields:
            continue
        wanted = fields[name]
        if not _is_one_of(wanted, values):
            expected = " or ".join(map(repr, values))
            raise DoorRefusal(
                400, f"`{name}` is {wanted!r:.80}; expected {expected}. Other values are not supported.",
                param=name, code="unsupported_value",
            )  # fmt: skip


def check_none_left(
    fields: Mapping[str, Any], known: Iterable[str], remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse fields that are not known. `remedies`: what to do about some. Raises: DoorRefusal."""
    known = {*known}
    name = next((name for name in fields if name not in known), None)
    if name is not None:
        remedy = {"chat_template_kwargs": OF_THE_ROW, **remedies}.get(name, "Leave it out.")
        raise DoorRefusal(
            400, f"`{name:.80}` is no field that is supported here. {remedy}", param=f"{name:.80}",
            code="unsupported_parameter",
        )  # fmt: skip


def take_limit(fields: dict[str, Any], *names: str) -> int | None:
    """Remove fields of a most number of tokens; returns the smallest. Raises: DoorRefusal."""
    found = []
    for name in names:
        if name not in fields:
            continue
        value = fields.pop(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DoorRefusal(
                400, f"`{name}` is {value!r:.80}; expected a whole number of at least 1.", param=name
            )
        found.append(min(value, 2**31 - 1))
    return min(found, default=None)


def take_flag(fields: dict[str, Any], name: str) -> bool:
    """Remove a field that is true or false. Raises: DoorRefusal."""
    value = fields.pop(name, False)
    if not isinstance(value, bool):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected true or false.", param=name)
    return value


def take_mapping(fields: dict[str, Any], name: str) -> Mapping[str, Any]:
    """Remove a field that is an object. Raises: DoorRefusal."""
    value = fields.pop(name, {})
    if not isinstance(value, dict):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected a JSON object.", param=name)
    return value


def take_text(fields: dict[str, Any], name: str) -> str:
    """Remove a field that is text. Raises: DoorRefusal."""
    value = fields.pop(name, "")
    if not isinstance(value, str):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected text.", param=name)
    return value
