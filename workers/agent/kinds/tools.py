"""Agents that are a class of tools, as in TRL: `reset(**row)`, a tool for each method, `get_reward()`.

Invariants: one object per episode; the loop of turns is here; a call that cannot be made, or whose method
raises, is answered by an error text, so that the policy bears the consequences of its call.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.kinds.function import PlayEpisode, check_options, result_of
from workers.agent.kinds.saving import METHODS, keep, loaded, saves
from workers.agent.kinds.tool_schema import Tool, ToolRefused, arguments_of, tool_of
from workers.agent.messages import text_of
from workers.agent.policy import AgentPolicy, BudgetExceeded, EnvironmentFailed

OURS = ("reset", "get_reward", "close")
MAX_ANSWER_CHARS = 100_000


def is_tools(target: Any) -> bool:
    """Whether the object is of this kind by its attributes."""
    return inspect.isclass(target) and hasattr(target, "reset") and hasattr(target, "get_reward")


def from_tools(target: Any, options: Mapping[str, Any]) -> PlayEpisode:
    """Episodes with objects of the class.

    Raises: ConfigError if it has no tools, or bad ones, or does not take the options.
    """
    if not is_tools(target):
        raise ConfigError(
            f"The agent is {target!r:.80}; of `agent.kind: tools` it is a class with `reset`, `get_reward`, "
            "and a public method for each tool."
        )
    check_options(target, options)
    tools = [tool_of(method, name) for name, method in _methods(target)]
    if not tools:
        raise ConfigError(
            f"The class {target.__name__} has no tools: no public method but {', '.join(OURS)}."
        )
    table = {tool.name: tool for tool in tools}

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        environment = target(**options)
        try:
            return await _play(environment, table, policy, row)
        finally:
            if callable(close := getattr(environment, "close", None)):
                await result_of(close)

    return episode


async def _play(
    environment: Any, tools: Mapping[str, Tool], policy: AgentPolicy, row: Mapping[str, Any]
) -> Any:
    if (found := await loaded(policy, environment)) is not None:
        messages = found["messages"]
    else:
        first = await result_of(environment.reset, **_wanted(environment.reset, row))
        messages = first_messages(row, first)
    schemas = [tool.schema for tool in tools.values()]
    try:
        while True:
            await keep(policy, environment, {"messages": messages})
            answer = await policy.chat(messages, tools=schemas)
            messages.append(answer)
            calls = answer.get("tool_calls") or ()
            if not calls:
                break
            for call in calls:
                content = await _answer(environment, tools, call["function"])
                messages.append(told(call, content))
    except BudgetExceeded:
        pass  # earlier rewards stand; the policy has noted the limit
    said = [message for message in messages if message["role"] == "assistant"]
    offered = {**row, "messages": messages, "completion": said[-1]["content"] if said else ""}
    return await result_of(environment.get_reward, **_wanted(environment.get_reward, offered))


async def _answer(environment: Any, tools: Mapping[str, Tool], function: Mapping[str, str]) -> str:
    """The tool's answer to a call."""
    tool = tools.get(function["name"])
    try:
        if tool is None:
            known = ", ".join(tools)
            raise ToolRefused(f"There is no tool {function['name']!r:.60}. There are: {known}.")
        arguments = arguments_of(tool, function["arguments"])
        return str(await result_of(getattr(environment, tool.name), **arguments))[:MAX_ANSWER_CHARS]
    except EnvironmentFailed:
        raise
    except (ToolRefused, Exception) as error:  # as in TRL: a method's error goes to the policy
        return f"Error: {error}"[:MAX_ANSWER_CHARS]


def told(call: Mapping[str, Any], content: str) -> dict[str, Any]:
    """The message that answers a call; with the tool's name, as in TRL: the template of Hermes needs it."""
    name = call["function"]["name"]
    return {"role": "tool", "name": name, "tool_call_id": call["id"], "content": content}


def first_messages(row: Mapping[str, Any], first: Any) -> list[dict[str, Any]]:
    """The row's prompt, followed by the text of `reset`. Raises: ValueError if that would follow no text."""
    prompt = row.get("prompt", "")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*map(dict, prompt)]
    if isinstance(first, str) and first:
        content = text_of(messages[-1].get("content"), len(messages) - 1) + first if messages else first
        messages[-1:] = [{**(messages[-1] if messages else {"role": "user"}), "content": content}]
    return messages


def _methods(target: Any) -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(target, inspect.isfunction)
    ours = OURS + METHODS * saves(target)
    return [(name, method) for name, method in found if not name.startswith("_") and name not in ours]


def _wanted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that the function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return dict(offered)
    return {each.name: offered[each.name] for each in parameters if each.name in offered}
