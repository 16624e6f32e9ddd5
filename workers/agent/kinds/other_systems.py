"""Agents that were written for AReaL or Miles: adapts their arguments and results.

Invariants: such a function asks its policy only at the door; its result becomes rewards as its own system
would interpret it, or an error message.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any

from protocol.agents.function_shapes import SESSION, WORKFLOW, FunctionShape
from workers.agent.door.http_client import find_client
from workers.agent.kinds.results import BadResult, Returned
from workers.agent.policy import AgentPolicy, finite

Call = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Calls the user's function with those of these arguments that it takes."""
Play = Callable[[AgentPolicy, Mapping[str, Any]], Awaitable[Any]]

WORKFLOW_GIVES = "a number, {completion id: reward}, or None for `reward.function` to say it"
SESSION_GIVES = 'a number, {"reward": number, ...}, or None or a mapping without it for `reward.function`'


def from_workflow(call: Call, takes: Collection[str]) -> Play:
    """Episodes of AReaL's `run(data, base_url=, api_key=, http_client=)`.

    Source: AReaL 4aef98d, areal/api/workflow_api.py, `AgentWorkflow`.
    """
    make_client = find_client() if "http_client" in takes else None

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        given = {"data": dict(row), "base_url": policy.base_url, "api_key": policy.api_key}
        async with nullcontext() if make_client is None else make_client() as client:
            result = await call(given | {"http_client": client})
        return _of_completions(result, policy)

    return episode


def from_session(call: Call, takes: Collection[str]) -> Play:
    """Episodes of Miles' `run(base_url, prompt, request_kwargs, metadata)`.

    Source: Miles 31f1ca9, miles/rollout/generate_hub/agentic_tool_call.py.
    """
    del takes

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        given = {"base_url": policy.url_with_key, "request_kwargs": policy.request_kwargs}
        return _of_session(await call(given | _of_row(row)), policy)

    return episode


PLAYERS: dict[FunctionShape, Callable[[Call, Collection[str]], Play]] = {
    WORKFLOW: from_workflow,
    SESSION: from_session,
}
"""Makes episodes of a function with another system's shape."""


def _of_completions(result: Any, policy: AgentPolicy) -> float | Returned | None:
    """Raises: BadResult."""
    if not isinstance(result, Mapping):
        return _number(result, WORKFLOW_GIVES)
    if not result and policy.reached_limit:
        return Returned.TURN_REWARDS  # no turn has come to one before
    if not result:
        raise BadResult(f"The agent returned an empty mapping; expected {WORKFLOW_GIVES}.")
    for id, reward in result.items():
        if not isinstance(id, str):
            raise BadResult(f"The agent returned {result!r:.120}, of which {id!r:.80} is no completion id.")
        try:
            policy.reward(reward, turn=id)
        except ValueError as error:
            raise BadResult(
                f"The agent returned {result!r:.120}; expected {WORKFLOW_GIVES}. {error}"
            ) from None
    return Returned.TURN_REWARDS


def _of_session(result: Any, policy: AgentPolicy) -> float | None:
    """Raises: BadResult."""
    if not isinstance(result, Mapping):
        return _number(result, SESSION_GIVES)
    more = {name: value for name, value in result.items() if name != "reward"}
    if more:
        policy.log(more)
    return _number(result.get("reward"), SESSION_GIVES, result)


def _number(value: Any, expected: str, result: Any = None) -> float | None:
    if value is None:
        return None
    try:
        return finite(value, "The end of the episode")
    except ValueError:
        shown = value if result is None else result
        raise BadResult(
            f"The agent returned {shown!r:.120} of type {type(shown).__name__}; expected {expected}."
        ) from None


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as `prompt` messages and `metadata`: the other columns, and the entries of one of that name.

    Raises: BadResult.
    """
    metadata = dict(row)
    prompt = metadata.pop("prompt", None)
    if prompt is None:
        raise BadResult(
            f"The row has no `prompt`, which the agent's function takes; it has "
            f"{', '.join(row) or 'nothing'}. Give such a column, or have `data.prompt` make it."
        )
    nested = metadata.get("metadata")
    if isinstance(nested, Mapping):  # as Miles' own data has them
        del metadata["metadata"]
        metadata |= nested
    return {
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "metadata": metadata,
    }
