"""Reads a request of OpenAI's Responses API as a chat request, or refuses it with a reason.

Invariants: pure; as `chat_request`. Nothing is stored, so that each request holds its whole conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.settings import SamplingSettings
from workers.agent.door.body import read_object
from workers.agent.door.chat_request import ChatRequest
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
from workers.agent.door.responses_input import messages_of

NESTED = ("reasoning", "text")
"""Objects whose fields are checked by names such as `text.format`."""
NO_EFFECT = {
    "max_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning.generate_summary", "reasoning.summary", "safety_identifier", "service_tier", "store",
    "stream_options", "user",
}  # fmt: skip
"""Fields without effect on answers: reasoning is given whole, and the door runs no tools."""
ONLY: Only = {"background": (False,), "top_logprobs": (0,), "truncation": ("disabled",)}
CONSTRAINTS: Constraints = {
    "parallel_tool_calls": ((True,), (bool,)),
    "reasoning.effort": ((), (str,)),
    "text.format": (({"type": "text"},), (dict,)),
    "text.verbosity": ((), (str,)),
    "tool_choice": (("auto", "none"), (str, dict)),
}
SEND_ALL = "Nothing is stored here: send the whole conversation as `input`."
REMEDIES = {
    "conversation": SEND_ALL,
    "max_tokens": "Its name is `max_output_tokens`.",
    "previous_response_id": SEND_ALL,
    "prompt": "Nothing is stored here: send its text as `instructions` and `input`.",
}
LOGPROBS = "message.output_text.logprobs"
OF_TOOLS = ("name", "description", "parameters", "strict")
"""What the policy is shown of a tool, in this order, as clients of chat completions send it."""


def read_response_request(
    body: bytes, sampling: SamplingSettings, *, is_refusing: bool = True
) -> ChatRequest:
    """The request in a body. `is_refusing`: refuse sampling that differs from the run's.

    Raises: DoorRefusal.
    """
    fields = read_object(body)
    for name in NESTED:
        nested = take_mapping(fields, name)
        fields |= {f"{name}.{key}": value for key, value in nested.items() if value is not None}
    disobeyed = check_sampling(fields, sampling, is_refusing=is_refusing)
    disobeyed += check_constraints(fields, CONSTRAINTS, is_refusing=is_refusing)
    check_only(fields, ONLY)
    take_text(fields, "model")
    if "input" not in fields:
        where = " A request with `messages` goes to /v1/chat/completions." if "messages" in fields else ""
        raise DoorRefusal(
            400, f"`input` is missing; expected text, or a list of items.{where}", param="input"
        )
    instructions = take_text(fields, "instructions")
    tools, limit = _tools(fields), take_limit(fields, "max_output_tokens")
    reads_calls = fields.pop("tool_choice", "auto") != "none"
    repeated = {
        "instructions": instructions or None, "max_output_tokens": limit,
        "metadata": take_mapping(fields, "metadata"), "temperature": sampling.temperature,
        "tool_choice": "auto" if reads_calls else "none", "tools": tools, "top_p": sampling.top_p,
    }  # fmt: skip
    request = ChatRequest(
        messages=messages_of(fields.pop("input"), instructions),
        tools=[{"type": "function", "function": _shown(tool)} for tool in tools] or None,
        max_tokens=limit,
        reads_calls=reads_calls,
        has_logprobs=_has_logprobs(fields),
        is_stream=take_flag(fields, "stream"),
        has_usage=True,
        disobeyed=disobeyed,
        response=repeated,
    )
    check_none_left(fields, (*ONLY, *CONSTRAINTS, *NO_EFFECT), REMEDIES)
    return request


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in OF_TOOLS if tool.get(name) is not None}


def _tools(fields: dict[str, Any]) -> Sequence[dict[str, Any]]:
    tools = fields.pop("tools", [])
    if not isinstance(tools, list):
        raise DoorRefusal(400, f"`tools` is {tools!r:.80}; expected a list of functions.", param="tools")
    for place, tool in enumerate(tools):
        _check_tool(tool, f"tools[{place}]")
    return [dict.fromkeys(OF_TOOLS) | tool for tool in tools]


def _check_tool(tool: Any, where: str) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise DoorRefusal(
            400, f"`{where}` is of the type {kind!r:.40}; expected 'function': the door runs no tools. Give "
            "a function, and run it yourself.", param=where, code="unsupported_value",
        )  # fmt: skip
    is_told = kind == "function" and isinstance(tool.get("name"), str)
    if not is_told or not isinstance(tool.get("parameters") or {}, dict):
        raise DoorRefusal(
            400, f'`{where}` is {tool!r:.80}; expected {{"type": "function", "name": ..., "parameters": '
            "...}.", param=where,
        )  # fmt: skip
    if unknown := next((name for name in tool if tool[name] and name not in ("type", *OF_TOOLS)), None):
        raise DoorRefusal(
            400, f"`{where}.{unknown:.40}` is no field of a tool that is supported here. Leave it out.",
            param=f"{where}.{unknown:.40}", code="unsupported_parameter",
        )  # fmt: skip


def _has_logprobs(fields: dict[str, Any]) -> bool:
    """Whether `include`, most of which is about tools that are not here, asks for logprobs."""
    include = fields.pop("include", [])
    if not isinstance(include, list):
        raise DoorRefusal(400, f"`include` is {include!r:.80}; expected a list of texts.", param="include")
    return LOGPROBS in include
