"""An environment of OpenEnv of MCP tools: `python connected_mcp.py PORT` serves it."""

import sys
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Safe(MCPEnvironment):
    """Open it with the key, and say what is in it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("safe")
        self._secret = ""

        @server.tool
        def opened(key: int) -> str:
            """What is in the safe."""
            return f"it holds {self._secret}" if key == 7 else "it stays shut"

        @server.tool
        def answer(secret: str) -> str:
            """Say what is in it."""
            return "heard"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._secret = f"gold {seed}"
        return Observation(done=False, reward=None)

    def step(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        return self._judged(action, super().step(action, timeout_s=timeout_s, **more))

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        """What a server of openenv-core 0.3 calls."""
        return self._judged(action, await super().step_async(action, timeout_s=timeout_s, **more))

    def _judged(self, action: Action, observed: Observation) -> Observation:
        if isinstance(action, CallToolAction) and action.tool_name == "answer":
            observed.done = True
            observed.reward = float(action.arguments.get("secret") == self._secret)
        return observed

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("only tools")

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    app = create_fastapi_app(Safe, CallToolAction, CallToolObservation, max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
