"""Reads a request of OpenAI's chat completions, or refuses it with a reason.

Invariants: pure; a field that would change the answer is obeyed or refused by name, and never ignored
silently; a read request has no text that cannot be encoded, and is nested no deeper than MAX_DEPTH.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.settings import SamplingSettings, WorkerSettings
from workers.agent.door.refusal import DoorRefusal

MAX_DEPTH = 64
NO_EFFECT = {
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "seed", "service_tier",
    "store", "user",
}  # fmt: skip
"""Fields without effect on answers: the noise of sampling is the run's."""
ONLY: dict[str, tuple[Any, ...]] = {"n": (1,), "modalities": (["text"],), "top_logprobs": (0,)}
"""Fields that are accepted with these values only."""
CONSTRAINTS: dict[str, tuple[tuple[Any, ...], tuple[type, ...]]] = {
    "logit_bias": (({},), (dict,)),
    "parallel_tool_calls": ((True,), (bool,)),
    "reasoning_effort": ((), (str,)),
    "response_format": (({"type": "text"},), (dict,)),
    "tool_choice": (("auto", "none"), (str, dict)),
    "verbosity": ((), (str,)),
}
"""Fields that bind what may be sampled: the values that do not, and the types of those that do."""
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
OF_THE_ROW = (
    "Leave it out, and set `data.chat_template_kwargs`, or a column of this name: all requests of an episode "
    "are rendered alike."
)
UNLIMITED_TOP_K = (-1, 0)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request."""

    messages: Any  # checked by the episode
    tools: list[dict[str, Any]] | None
    max_tokens: int | None
    reads_calls: bool  # not with `tool_choice: none`
    has_logprobs: bool
    is_stream: bool
    has_usage: bool  # at the end of a stream
    disobeyed: tuple[str, ...]  # fields that ask for another sampling than the run's
    is_untrained: bool = False

    @property
    def question(self) -> dict[str, Any]:
        """The request in the form that the episode takes."""
        return {
            "chat": self.messages, "tools": self.tools, "max_tokens": self.max_tokens,
            "reads_calls": self.reads_calls, "is_untrained": self.is_untrained,
        }  # fmt: skip


def run_fields(settings: WorkerSettings) -> dict[str, Any]:
    """Request fields that ask for the run's own sampling.

    Fields that some clients do not know are included only if the run sets them.
    """
    sampling = settings.rollout.sampling
    most = settings.agent.max_turn_tokens or settings.rollout.max_response_tokens
    rare = {name: getattr(sampling, name) for name in ("top_k", "min_p", "min_tokens")}
    return {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": most,
        **{name: value for name, value in rare.items() if value},
        **({"stop": [*sampling.stop]} if sampling.stop else {}),
    }  # fmt: skip


def read_request(body: bytes, sampling: SamplingSettings, *, is_refusing: bool = True) -> ChatRequest:
    """The request in a body. `is_refusing`: refuse sampling that differs from the run's.

    Raises: DoorRefusal.
    """
    fields = {key: value for key, value in _object(body).items() if value is not None}
    disobeyed = _check_sampling(fields, sampling, is_refusing) + _check_constraints(fields, is_refusing)
    _check_only(fields)
    _text(fields, "model")
    if "messages" not in fields:
        raise DoorRefusal(400, "`messages` is missing; expected a list of chat messages.", param="messages")
    options = _mapping(fields, "stream_options")
    request = ChatRequest(
        messages=fields.pop("messages"),
        tools=_tools(fields),
        max_tokens=_max_tokens(fields),
        reads_calls=fields.pop("tool_choice", "auto") != "none",
        has_logprobs=_flag(fields, "logprobs"),
        is_stream=_flag(fields, "stream"),
        has_usage=options.get("include_usage") is True,
        disobeyed=disobeyed,
    )
    for name in (*ONLY, *CONSTRAINTS, *NO_EFFECT):
        fields.pop(name, None)
    if fields:
        name = next(iter(fields))
        remedy = OF_THE_ROW if name == "chat_template_kwargs" else "Leave it out."
        raise DoorRefusal(
            400, f"`{name:.80}` is no field that is supported here. {remedy}", param=f"{name:.80}",
            code="unsupported_parameter",
        )  # fmt: skip
    return request


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # that it is no UTF-8 is one, too
        raise DoorRefusal(400, f"The body is no JSON in UTF-8: {error}.") from None
    if not isinstance(value, dict):
        raise DoorRefusal(400, f"The body is {value!r:.80}; expected a JSON object.")
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:  # else it is no deeper
        _check_depth(value)
    return _encodable(value) if b"\\u" in body else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]


def _too_deep() -> DoorRefusal:
    return DoorRefusal(400, f"The body is nested too deep; at most {MAX_DEPTH} levels are read.")


def _encodable(value: dict[str, Any]) -> dict[str, Any]:
    """The value with replacement characters for lone surrogates."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


def _check_sampling(fields: dict[str, Any], sampling: SamplingSettings, is_refusing: bool) -> tuple[str, ...]:
    """Remove the sampling fields; returns the names of those that differ from the run's."""
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


def _check_constraints(fields: Mapping[str, Any], is_refusing: bool) -> tuple[str, ...]:
    """The names of constraints on the answer, which the policy does not sample under."""
    disobeyed = []
    for name, (free, types) in CONSTRAINTS.items():
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


def _check_only(fields: Mapping[str, Any]) -> None:
    for name, values in ONLY.items():
        if name not in fields:
            continue
        wanted = fields[name]
        if not _is_one_of(wanted, values):
            expected = " or ".join(map(repr, values))
            raise DoorRefusal(
                400, f"`{name}` is {wanted!r:.80}; expected {expected}. Other values are not supported.",
                param=name, code="unsupported_value",
            )  # fmt: skip


def _tools(fields: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = fields.pop("tools", None)
    if tools is not None and not (isinstance(tools, list) and all(map(_is_tool, tools))):
        raise DoorRefusal(
            400, f'`tools` is {tools!r:.80}; expected a list of {{"type": "function", "function": {{"name": '
            '..., "parameters": ...}}.', param="tools",
        )  # fmt: skip
    return tools or None


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _max_tokens(fields: dict[str, Any]) -> int | None:
    found = []
    for name in ("max_tokens", "max_completion_tokens"):
        if name not in fields:
            continue
        value = fields.pop(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DoorRefusal(
                400, f"`{name}` is {value!r:.80}; expected a whole number of at least 1.", param=name
            )
        found.append(min(value, 2**31 - 1))
    return min(found, default=None)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.pop(name, False)
    if not isinstance(value, bool):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected true or false.", param=name)
    return value


def _mapping(fields: dict[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.pop(name, {})
    if not isinstance(value, dict):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected a JSON object.", param=name)
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.pop(name, "")
    if not isinstance(value, str):
        raise DoorRefusal(400, f"`{name}` is {value!r:.80}; expected text.", param=name)
    return value
