"""Reads a request of OpenAI's chat completions, or refuses it with a reason.

Invariants: pure; a field that would change the answer is obeyed or refused by name, and never ignored
silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.settings import SamplingSettings, WorkerSettings
from workers.agent.door.body import read_object
from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.request_fields import (
    Constraints,
    Only,
    check_constraints,
    check_none_left,
    check_only,
    check_sampling,
    take_flag,
    take_limit,
    take_mapping,
    take_text,
)

NO_EFFECT = {
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "seed", "service_tier",
    "store", "user",
}  # fmt: skip
"""Fields without effect on answers: the noise of sampling is the run's."""
ONLY: Only = {"n": (1,), "modalities": (["text"],), "top_logprobs": (0,)}
CONSTRAINTS: Constraints = {
    "logit_bias": (({},), (dict,)),
    "parallel_tool_calls": ((True,), (bool,)),
    "reasoning_effort": ((), (str,)),
    "response_format": (({"type": "text"},), (dict,)),
    "tool_choice": (("auto", "none"), (str, dict)),
    "verbosity": ((), (str,)),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request at the door, in terms of chat completions."""

    messages: Any  # checked by the episode
    tools: list[dict[str, Any]] | None
    max_tokens: int | None
    reads_calls: bool  # not with `tool_choice: none`
    has_logprobs: bool
    is_stream: bool
    has_usage: bool  # at the end of a stream
    disobeyed: tuple[str, ...]  # fields that ask for another sampling than the run's
    is_untrained: bool = False
    response: Mapping[str, Any] | None = None
    """Fields that the answer repeats, in the format of the Responses API; None: of chat completions."""

    @property
    def param(self) -> str:
        """The field that has the conversation."""
        return "messages" if self.response is None else "input"

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
    fields = read_object(body)
    disobeyed = check_sampling(fields, sampling, is_refusing=is_refusing)
    disobeyed += check_constraints(fields, CONSTRAINTS, is_refusing=is_refusing)
    check_only(fields, ONLY)
    take_text(fields, "model")
    if "messages" not in fields:
        where = " A request with `input` goes to /v1/responses." if "input" in fields else ""
        raise DoorRefusal(
            400, f"`messages` is missing; expected a list of chat messages.{where}", param="messages"
        )
    options = take_mapping(fields, "stream_options")
    request = ChatRequest(
        messages=fields.pop("messages"),
        tools=_tools(fields),
        max_tokens=take_limit(fields, "max_tokens", "max_completion_tokens"),
        reads_calls=fields.pop("tool_choice", "auto") != "none",
        has_logprobs=take_flag(fields, "logprobs"),
        is_stream=take_flag(fields, "stream"),
        has_usage=options.get("include_usage") is True,
        disobeyed=disobeyed,
    )
    check_none_left(fields, (*ONLY, *CONSTRAINTS, *NO_EFFECT))
    return request


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
