"""OpenEnv environments whose actions are tool calls (MCP), which the policy makes.

Invariants: the environment lists its tools at each episode's beginning; the policy is told of a call that
cannot be made; the rewards of the calls in an answer count for its turn.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workers.agent.kinds.openenv_wire import Refusal
from workers.agent.kinds.results import Returned
from workers.agent.kinds.tools import MAX_ANSWER_CHARS, first_messages, told
from workers.agent.policy import AgentPolicy, BudgetExceeded

AS_TOOLS = "tools"
CALL = "call_tool"


def wants_calls(schema: Mapping[str, Any]) -> bool:
    """Whether an action by this JSON schema is a call of a tool."""
    properties = schema.get("properties", {})
    return {"type", "tool_name", "arguments"} <= set(properties) and CALL in json.dumps(properties["type"])


def schema_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the format of chat completions, from the environment's description."""
    given = tool.get("input_schema") or tool.get("inputSchema") or {}
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": given}
    return {"type": "function", "function": function}


async def play_tools(
    session: Any,
    policy: AgentPolicy,
    row: Mapping[str, Any],
    *,
    first: str,
    tools: Sequence[Mapping[str, Any]],
) -> Returned:
    """Play one episode of a session after its reset, until it is done or the policy makes no call.

    `first`: the environment's text, placed after the row's prompt. Rewards count for their turns. Raises:
    RuntimeError if there is neither; EnvironmentFailed.
    """
    messages = first_messages(row, first)
    if not messages or not messages[-1].get("content"):
        raise RuntimeError(
            "Neither has the row a `prompt`, nor does the environment's `reset` say a text. Give the data a "
            "prompt, or name the field with `agent.options.observation`."
        )
    schemas = [schema_of(tool) for tool in tools]
    try:
        while True:
            answer = await policy.chat(messages, tools=schemas)
            messages.append(answer)
            calls = answer.get("tool_calls") or ()
            for call in calls:
                content, reward, is_done = await _called(session, call["function"])
                policy.reward(reward)
                if is_done:
                    return Returned.TURN_REWARDS
                messages.append(told(call, content))
            if not calls:
                return Returned.TURN_REWARDS
    except BudgetExceeded:
        return Returned.TURN_REWARDS


async def _called(session: Any, function: Mapping[str, str]) -> tuple[str, float, bool]:
    """A call's result for the policy, its reward, and whether that is the end. Raises: EnvironmentFailed."""
    name = function["name"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments of {name} are no JSON: {error}.", 0.0, False
    if not isinstance(arguments, dict):
        return f"Error: the arguments of {name} are no JSON object.", 0.0, False
    try:
        found = await session.step({"type": CALL, "tool_name": name, "arguments": arguments})
    except Refusal as refusal:
        return f"Error: {refusal}", 0.0, False
    text = _text_of(found["observation"])[:MAX_ANSWER_CHARS]
    return text, found["reward"] or 0.0, bool(found["done"])


def _text_of(observation: Mapping[str, Any]) -> str:
    """The text of a call's result: the texts of its content, else its data, else all as JSON."""
    error = observation.get("error")
    if error:
        return f"Error: {error.get('message', error) if isinstance(error, Mapping) else error}"
    result = observation.get("result")
    if isinstance(result, Mapping):
        content = result.get("content")
        parts = content if isinstance(content, list) else []
        texts = [str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part]
        if texts:
            return "\n".join(texts)
        result = result.get("data", result)
    return result if isinstance(result, str) else json.dumps(result, default=str)
