"""What a server of OpenEnv says is looked at before it is believed."""

import pytest

from tests.unit.workers.agent.kinds.test_agent_kinds import Script
from workers.agent.kinds.openenv_tools import play_tools
from workers.agent.kinds.openenv_wire import OpenEnvSession
from workers.agent.policy import AgentPolicy, EnvironmentFailed


class Socket:
    """Says one thing."""

    def __init__(self, said):
        self.said = said

    async def send(self, text): ...

    async def recv(self):
        return self.said


def session(said):
    one = OpenEnvSession("ws://here")
    one._socket = Socket(said)
    return one


@pytest.mark.parametrize(
    "tools", ['["add"]', '[{"description": "no name"}]', '[{"name": 5}]', '{"name": "add"}']
)
async def test_tools_without_names_are_the_environments_fault(tools):
    said = f'{{"type": "mcp", "data": {{"result": {{"tools": {tools}}}}}}}'
    with pytest.raises(EnvironmentFailed, match="does not say which tools it has"):
        await session(said).tools()


@pytest.mark.parametrize("reward", ['"much"', "[1]", "{}"])
async def test_a_reward_that_is_no_number_is_the_environments_fault(reward):
    said = f'{{"type": "step", "data": {{"observation": {{}}, "reward": {reward}}}}}'
    with pytest.raises(EnvironmentFailed, match=r"gave the reward .*; expected a number"):
        await session(said).step({})


async def test_a_reward_that_is_not_finite_is_told_with_its_value():
    class Endless:
        async def step(self, action):
            return {"observation": {"result": "x"}, "reward": float("inf"), "done": True}

    policy = AgentPolicy(Script((("add", "{}"),)), seed=1)
    with pytest.raises(ValueError, match=r"policy\.reward got inf"):
        await play_tools(Endless(), policy, {"prompt": "go"}, first="", tools=[{"name": "add"}])
