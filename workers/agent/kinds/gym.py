"""Agents that are a text environment: Gymnasium's `reset(seed, options)` and `step(text)`, or SkyRL's.

Invariants: one environment per episode, seeded by the group's seed; the reward of a step counts for the turn
that it answers, and the episode has no other reward.
"""

from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.kinds.function import PlayEpisode, check_options, result_of
from workers.agent.kinds.results import Returned
from workers.agent.kinds.saving import keep, loaded
from workers.agent.kinds.skyrl import is_skyrl, make_skyrl
from workers.agent.policy import AgentPolicy, BudgetExceeded

Step = tuple[Any, float, bool, bool, Any]
"""Observation, reward, terminated, truncated, info."""


def is_gym(target: Any) -> bool:
    """Whether the object is of this kind by its attributes."""
    is_ours = callable(getattr(target, "reset", None)) and callable(getattr(target, "step", None))
    return is_ours or is_skyrl(target)


def from_gym(target: Any, options: Mapping[str, Any]) -> PlayEpisode:
    """Episodes of an environment class, or of a function that makes one. Raises: ConfigError."""
    if not callable(target):
        raise ConfigError(
            f"The agent is {target!r:.80}; of `agent.kind: gym` it is a class of environments, or a function "
            "that makes one."
        )

    if not is_skyrl(target):
        check_options(target, options)

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Returned:
        if is_skyrl(target):
            environment = await result_of(make_skyrl, target, options, row)
        else:
            environment = await result_of(target, **options)
        try:
            return await play_steps(environment, policy, row)
        finally:
            if callable(close := getattr(environment, "close", None)):
                await result_of(close)

    return episode


async def play_steps(environment: Any, policy: AgentPolicy, row: Mapping[str, Any]) -> Returned:
    """Play one episode of an environment with `reset` and `step`; rewards count for their turns."""
    if (found := await loaded(policy, environment)) is not None:
        messages = found["messages"]
    else:
        observed = await result_of(environment.reset, seed=policy.seed, options=dict(row))
        messages = _messages(observed[0] if isinstance(observed, tuple) else observed)
    try:
        while True:
            await keep(policy, environment, {"messages": messages})
            answer = await policy.chat(messages)
            messages.append(answer)
            stepped = await result_of(environment.step, answer["content"])
            if not isinstance(stepped, tuple) or len(stepped) != 5:
                raise TypeError(
                    f"`step` returned {stepped!r:.80}; expected (observation, reward, terminated, truncated, "
                    "info), as Gymnasium has it."
                )
            observed, reward, is_terminated, is_truncated, _ = stepped
            policy.reward(reward)
            if is_terminated or is_truncated:
                return Returned.TURN_REWARDS
            messages += _messages(observed)
    except BudgetExceeded:
        return Returned.TURN_REWARDS


def _messages(observed: Any) -> list[dict[str, Any]]:
    """An observation as chat messages. Raises: TypeError if it is neither text nor messages."""
    if isinstance(observed, str):
        return [{"role": "user", "content": observed}]
    if isinstance(observed, list) and observed and all(isinstance(each, Mapping) for each in observed):
        return [dict(each) for each in observed]
    raise TypeError(
        f"The environment observed {observed!r:.80} of type {type(observed).__name__}; expected text, or a "
        "list of chat messages."
    )
