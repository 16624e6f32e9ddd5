"""Agents that are tasks of a verifiers taskset: its prompt, its tools and its rewards.

Invariants: an episode is one run of `verifiers.v1.Agent`, with the task in its row; every model call in it is
a turn of the policy; an error of the task's code is reported as its own failure.
"""

import asyncio
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from protocol.agents.tasksets import find_taskset
from protocol.errors import ConfigError
from workers.agent.kinds.function import PlayEpisode
from workers.agent.policy import AgentPolicy, EnvironmentFailed

OURS = "staleflow"
ENVIRONMENTS_FAULT = ("SandboxError", "TunnelError", "InterceptionError", "ToolsetError")


def is_taskset(target: Any) -> bool:
    """Whether the object is a Taskset class of verifiers."""
    bases = inspect.getmro(target) if inspect.isclass(target) else ()
    return any(base.__name__ == "Taskset" and base.__module__.startswith("verifiers.") for base in bases)


def from_taskset(target: Any, options: Mapping[str, Any]) -> PlayEpisode:
    """Episodes of the tasks of a taskset: an id, or a class. Raises: ConfigError.

    The option `harness` is the id of a harness of verifiers; without it a loop in this process asks the
    policy and calls the task's tools. The other options are fields of the taskset's configuration.
    """
    rest = dict(options)
    harness = str(rest.pop("harness", OURS))
    found = find_taskset(target, rest)
    if found.taskset.toolsets(found.config):
        raise ConfigError(
            f"The taskset {target!r} has tool servers that all of its tasks share; this connector starts "
            "those of a task (`Task.toolsets`) only. Declare them there."
        )
    inside = importlib.import_module("workers.agent.kinds.verifiers_policy")  # verifiers takes seconds
    agent_config = inside.agent_config(harness, is_ours=harness == OURS)
    servers = inside.PolicyServers()

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> float:
        task = await asyncio.to_thread(found.task, row.get("task"))
        calls = inside.PolicyClient(policy)
        agent = inside.make_agent(agent_config, await servers.slot(calls), is_ours=harness == OURS)
        trace = await agent.run(task)
        if calls.failure is not None:
            raise calls.failure
        if not trace.ok:
            _raise_first(trace.errors)
        for name, value in trace.metrics.items():
            if value is not None:
                policy.metric(name, value)
        for name, value in trace.rewards.items():
            if value is not None:
                policy.metric(f"reward_{name}", value.score)
        return trace.reward

    return episode


def _raise_first(errors: Any) -> None:
    """Raises: EnvironmentFailed, or RuntimeError with the error of the task's code."""
    if not errors:
        raise EnvironmentFailed("verifiers ended the episode without saying why.")
    first = errors[0]
    if first.type in ENVIRONMENTS_FAULT:
        raise EnvironmentFailed(f"{first.type}: {first.message}")
    raise RuntimeError(f"{first.type}: {first.message}\n{first.traceback or ''}")
