"""Sessions with an OpenEnv server: JSON over a WebSocket, one session per connection.

Invariants: a message counts as an observation only if the server labels it so; a refused or lost session is
an EnvironmentFailed that quotes the server.
"""

import asyncio
import importlib
import json
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.policy import EnvironmentFailed

CONNECT_LIMIT_S = 30.0
MAX_BYTES = 64 << 20
POLICYS_FAULT = ("VALIDATION_ERROR", "INVALID_JSON")
FULL = "CAPACITY_REACHED"


class Refusal(Exception):
    """The server considers a message malformed; the text says why."""


def base_url(address: str) -> str:
    """The base URL of the server's pages, from an address of any form."""
    for ours, theirs in (("ws://", "http://"), ("wss://", "https://")):
        if address.startswith(ours):
            address = theirs + address.removeprefix(ours)
    return address.removesuffix("/").removesuffix("/ws").removesuffix("/")


class OpenEnvSession:
    """One session with a server."""

    def __init__(self, address: str) -> None:
        self._address = base_url(address)
        self._socket: Any = None

    async def open(self) -> None:
        """Connect. Raises: EnvironmentFailed."""
        websockets = importlib.import_module("websockets.asyncio.client")
        place = f"{self._address.replace('http', 'ws', 1)}/ws"
        try:
            self._socket = await websockets.connect(
                place, open_timeout=CONNECT_LIMIT_S, max_size=MAX_BYTES, proxy=None
            )
        except (OSError, TimeoutError, _errors().WebSocketException) as error:
            raise EnvironmentFailed(
                f"The environment server {self._address} cannot be reached: {error}"
            ) from error

    async def reset(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The first observation. Raises: EnvironmentFailed; Refusal."""
        if self._socket is None:
            await self.open()
        return _observed(await self._ask({"type": "reset", "data": dict(arguments)}))

    async def step(self, action: Any) -> dict[str, Any]:
        """The observation after an action. Raises: EnvironmentFailed; Refusal."""
        data = action.model_dump() if hasattr(action, "model_dump") else action
        return _observed(await self._ask({"type": "step", "data": data}))

    async def state(self) -> dict[str, Any]:
        """The session's state, which proves that the session exists. Raises: EnvironmentFailed."""
        return await self._ask({"type": "state"})

    async def tools(self) -> list[Any]:
        """The environment's tools, as MCP describes them. Raises: EnvironmentFailed."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = await self._ask({"type": "mcp", "data": asked})
        found = answer.get("result")
        if not isinstance(found, dict) or not _are_tools(found.get("tools")):
            error = answer.get("error")
            reason = error.get("message") if isinstance(error, dict) else answer
            raise EnvironmentFailed(
                f"The environment server {self._address} does not say which tools it has: {reason!r:.200}."
            )
        return found["tools"]

    async def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            await self._socket.close()

    async def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            await self._socket.send(json.dumps(message))
            answer = json.loads(await self._socket.recv())
        except _errors().ConnectionClosed as error:
            raise EnvironmentFailed(
                f"The environment server {self._address} closed the session: {error}. It may have no "
                "place for more sessions (agent.concurrency), or the environment died."
            ) from None
        except ValueError as error:
            raise EnvironmentFailed(f"The environment server {self._address} said no JSON: {error}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise EnvironmentFailed(f"The environment server {self._address} said {answer!r:.120}.")
        if answer.get("type") == "error":
            self._raise(answer["data"])
        return answer["data"]

    def _raise(self, said: Mapping[str, Any]) -> None:
        code, message = said.get("code"), said.get("message", "nothing")
        if code in POLICYS_FAULT:
            told = said.get("errors")
            errors = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
            raise Refusal("; ".join(str(each.get("msg")) for each in errors) or str(message))
        if code == FULL:
            raise EnvironmentFailed(
                f"The environment server {self._address} has no place for one more session: {message}. Set "
                "agent.concurrency times agent.workers to what it admits, or start it with more "
                "(max_concurrent_envs)."
            )
        raise EnvironmentFailed(f"The environment server {self._address} failed: {message} ({code}).")


def _are_tools(told: Any) -> bool:
    return isinstance(told, list) and all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in told
    )


def _observed(data: dict[str, Any]) -> dict[str, Any]:
    """The checked observation. Raises: EnvironmentFailed if it is malformed."""
    if not isinstance(data.get("observation"), dict):
        raise EnvironmentFailed(f"The environment server observed {data!r:.120}; expected `observation`.")
    reward = data.get("reward")
    if reward is not None and not isinstance(reward, int | float):
        raise EnvironmentFailed(f"The environment server gave the reward {reward!r:.120}; expected a number.")
    return {"reward": None, "done": False} | data


def _errors() -> Any:
    return importlib.import_module("websockets.exceptions")


async def check_sessions(address: str, wanted: int) -> None:
    """Open as many sessions as there will be episodes, and close them again.

    Raises: ConfigError if one is refused.
    """
    sessions = [OpenEnvSession(address) for _ in range(wanted)]
    try:
        found = await asyncio.gather(*map(_try, sessions), return_exceptions=True)
    finally:
        await asyncio.gather(*(session.close() for session in sessions))
    failed = [each for each in found if isinstance(each, BaseException)]
    admitted = wanted - len(failed)
    if failed and not admitted:
        raise ConfigError(f"The environment server {address} admits no session. {failed[0]}")
    if failed:
        raise ConfigError(
            f"The environment server {address} admits {admitted} sessions at once, and agent.concurrency is "
            f"{wanted}. Set agent.concurrency to {admitted} or less (it counts for each agent worker), or "
            f"start the server with more (max_concurrent_envs). The first refusal: {failed[0]}"
        )


async def _try(session: OpenEnvSession) -> None:
    await session.open()
    await session.state()
