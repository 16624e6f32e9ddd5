"""Agents that are an environment of OpenEnv: a session with a server per episode, or an object of a class.

Invariants: a session belongs to one episode, and is closed with it; an action that the environment refuses as
malformed is the policy's mistake, and is reported to it; any other failure is the environment's.
"""

import importlib
import inspect
import json
import typing
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.kinds.function import PlayEpisode, result_of
from workers.agent.kinds.gym import Step, play_steps
from workers.agent.kinds.openenv_texts import ActionMaker, Mistake, TextMaker
from workers.agent.kinds.openenv_tools import AS_TOOLS, play_tools, wants_calls
from workers.agent.kinds.openenv_wire import OpenEnvSession, Refusal, base_url
from workers.agent.kinds.results import Returned
from workers.agent.policy import AgentPolicy, EnvironmentFailed

SCHEMA_LIMIT_S = 30.0
OPTIONS = ("action", "observation", "reset", "score")
SCORES = ("environment", "function")
MCP_TYPES = "openenv.core.env_server.mcp_types"


def is_openenv(target: Any) -> bool:
    """Whether the object is of this kind: an address, or a class as in openenv-core."""
    return is_address(target) or hasattr(target, "SUPPORTS_CONCURRENT_SESSIONS")


def is_address(target: Any) -> bool:
    """Whether the object is a server's address."""
    return isinstance(target, str) and "://" in target


def from_openenv(target: Any, options: Mapping[str, Any]) -> PlayEpisode:
    """Episodes against a server, or with objects of a class. Raises: ConfigError.

    Options: `action`, how a text becomes an action, and `observation`, how an observation becomes text: a
    field, `json`, or the import path of a function; by default the only text field. If actions are tool
    calls, or `action` is `tools`, the policy makes tool calls. `reset`: columns of the row, separated by
    commas, that `reset` gets beside the seed. `score`: `environment`, or `function`, which leaves it to
    `reward.function`. Other options are for the class.
    """
    own = {name: str(options[name]) for name in OPTIONS if name in options}
    rest = {name: value for name, value in options.items() if name not in OPTIONS}
    columns = [name.strip() for name in own.get("reset", "").split(",") if name.strip()]
    if is_address(target):
        if rest:
            raise ConfigError(
                f"`agent.options` has {', '.join(rest)}; a server takes {', '.join(OPTIONS)} only."
            )
        schemas = _schemas(target)
    else:
        schemas = _schemas_of_class(target)
    if (score := own.get("score", SCORES[0])) not in SCORES:
        raise ConfigError(f"`agent.options.score` is {score!r}; expected {' or '.join(SCORES)}.")
    how, schema = own.get("action", ""), schemas.get("action", {})
    has_tools = how == AS_TOOLS or (not how and wants_calls(schema))
    to_action = None if has_tools else ActionMaker(how, schema)
    to_text = TextMaker(own.get("observation", ""), {} if has_tools else schemas.get("observation", {}))

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Returned | None:
        if is_address(target):
            session: Any = OpenEnvSession(target)
        else:
            session = _Within(await result_of(target, **rest), _action_class(target))
        try:
            if to_action is None:
                returned = await _play_calls(session, policy, row, to_text=to_text, columns=columns)
            else:
                returned = await play_steps(_AsGym(session, to_action, to_text, columns), policy, row)
        finally:
            await session.close()
        if score == "function":
            policy.notes.rewards.clear()
            return None
        return returned

    return episode


class _AsGym:
    """An OpenEnv session with the interface that `play_steps` needs."""

    def __init__(self, session: Any, to_action: ActionMaker, to_text: TextMaker, columns: list[str]) -> None:
        self._session, self._to_action, self._to_text = session, to_action, to_text
        self._columns = columns

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Any:
        """Raises: EnvironmentFailed; RuntimeError if the row lacks a column."""
        return self._to_text(await _begun(self._session, seed, options, self._columns))

    async def step(self, text: str) -> Step:
        """Raises: EnvironmentFailed."""
        try:
            found = await self._session.step(await self._to_action(text))
        except (Mistake, Refusal) as mistake:
            return f"Error: {mistake}", 0.0, False, False, {}
        return self._to_text(found["observation"]), found["reward"] or 0.0, bool(found["done"]), False, {}


async def _play_calls(
    session: Any, policy: AgentPolicy, row: Mapping[str, Any], *, to_text: TextMaker, columns: list[str]
) -> Returned:
    """Raises: EnvironmentFailed; RuntimeError."""
    observed = await _begun(session, policy.seed, row, columns)
    first = to_text.if_any(observed)
    return await play_tools(session, policy, row, first=first, tools=await session.tools())


async def _begun(session: Any, seed: int, row: Mapping[str, Any], columns: list[str]) -> Any:
    """The first observation. Raises: EnvironmentFailed; RuntimeError if the row lacks a column."""
    lacking = [name for name in columns if name not in row]
    if lacking:
        raise RuntimeError(
            f"`agent.options.reset` names the column {lacking[0]!r}; the row has {', '.join(row) or 'none'}."
        )
    arguments = {"seed": seed, **{name: row[name] for name in columns}}
    try:
        found = await session.reset(arguments)
    except Refusal as refusal:
        raise EnvironmentFailed(f"The environment refuses reset({arguments}): {refusal}") from None
    return found["observation"]


class _Within:
    """An object of the user's class with the interface of a session."""

    def __init__(self, environment: Any, action_class: Any) -> None:
        self._environment, self._action_class = environment, action_class

    async def reset(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        takes = inspect.signature(self._environment.reset).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        return _told(await result_of(self._environment.reset, **arguments))

    async def step(self, action: Any) -> dict[str, Any]:
        """Raises: Refusal if the action does not fit its class."""
        if isinstance(action, Mapping) and self._action_class is not None:
            try:
                action = self._action_class.model_validate(action)
            except ValueError as error:
                raise Refusal(str(error)) from None
        return _told(await result_of(self._environment.step, action))

    async def tools(self) -> list[dict[str, Any]]:
        """The environment's tools."""
        asked = importlib.import_module(MCP_TYPES).ListToolsAction()
        observed = await result_of(self._environment.step, asked)
        return [tool.model_dump() for tool in observed.tools]

    async def close(self) -> None:
        if callable(close := getattr(self._environment, "close", None)):
            await result_of(close)


def _told(observed: Any) -> dict[str, Any]:
    """An observation in the server's format."""
    fields = observed.model_dump(exclude={"reward", "done", "metadata"})
    return {"observation": fields, "reward": observed.reward, "done": observed.done}


def _schemas(address: str) -> dict[str, Any]:
    """JSON schemas of actions and observations, from the server. Raises: ConfigError."""
    place = f"{base_url(address)}/schema"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as websockets are: directly
    try:
        with opener.open(place, timeout=SCHEMA_LIMIT_S) as answer:
            schemas = json.load(answer)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The environment server {address} does not answer {place}: {error}. Expected a server of "
            "OpenEnv; start it first, and mind its port."
        ) from error
    if not isinstance(schemas, dict):
        raise ConfigError(f"{place} says {schemas!r:.80}; expected the schemas of a server of OpenEnv.")
    return schemas


def _schemas_of_class(target: Any) -> dict[str, Any]:
    """JSON schemas of a class. Raises: ConfigError if its objects cannot be used concurrently."""
    if not callable(target):
        raise ConfigError(f"The agent is {target!r:.80}; expected an address, or a class of OpenEnv.")
    if not getattr(target, "SUPPORTS_CONCURRENT_SESSIONS", True):
        raise ConfigError(
            f"{target.__name__}.SUPPORTS_CONCURRENT_SESSIONS is False, so its objects may not be used side "
            "by side, and the episodes of a prompt are. Set it to True if they share nothing."
        )
    action = _action_class(target)
    return {"action": action.model_json_schema()} if action is not None else {}


def _has_mcp(target: Any) -> bool:
    """Whether the class is from openenv-core with tool calls as actions."""
    return any(base.__name__ == "MCPEnvironment" for base in inspect.getmro(target))


def _action_class(target: Any) -> Any:
    """The action class in the type hints of `step`; None without one."""
    if _has_mcp(target):
        return importlib.import_module(MCP_TYPES).CallToolAction
    try:
        hints = typing.get_type_hints(target.step)
    except (NameError, TypeError, AttributeError):
        return None
    found = next((kind for name, kind in hints.items() if name != "return"), None)
    return found if hasattr(found, "model_validate") else None
