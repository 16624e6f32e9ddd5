"""A calculator as an MCP tool on a server of OpenEnv: `python3 openenv_calculator.py [PORT [SESSIONS]]`."""

import sys
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

NUMBERS = 100


class Calculator(MCPEnvironment):
    """One tool, and no reward: what the policy says in the end is scored by a function."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("calculator")

        @server.tool
        def add(a: int, b: int) -> int:
            """Adds two numbers, and keeps the last two digits."""
            return (a + b) % NUMBERS

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Observation:
        """Nothing to say: the sum is the prompt of the row."""
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError("there are tools only")

    @property
    def state(self) -> State:
        """Nothing to tell."""
        return State()


if __name__ == "__main__":
    import uvicorn

    port, sessions = [*map(int, sys.argv[1:]), *(8903, 128)[len(sys.argv) - 1 :]]
    app = create_fastapi_app(Calculator, CallToolAction, CallToolObservation, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
