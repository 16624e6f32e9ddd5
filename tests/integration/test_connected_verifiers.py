"""Tasksets of verifiers where it is installed: `launch.py test --thorough` makes an environment for that."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

from controller import Controller, load_config
from protocol.errors import ConfigError
from tests.unit.workers.agent.kinds.test_agent_kinds import Script
from workers.agent.kinds.chosen_kind import load_agent, make_episode
from workers.agent.kinds.verifiers import is_taskset
from workers.agent.policy import AgentPolicy

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("verifiers") is None,
        reason="not installed: pip install -e '.[verifiers]'",
    ),
    pytest.mark.filterwarnings("ignore"),  # of its libraries
]
LIMIT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
TASKS = "tests.integration.connected_tasks"
SUCCESSORS = f"{ROOT}/examples/environments/successors.py:Successors"


def rows(name):
    from protocol.agents.tasksets import find_taskset

    return [
        {"task": task.data.model_dump(mode="json", exclude_defaults=True)}
        for task in find_taskset(name, {}).taskset
    ]


async def play(name, row, *answers, options=None):
    script = Script(*answers)
    policy = AgentPolicy(script, seed=1)
    episode = make_episode(load_agent(name, "verifiers"), kind="verifiers", options=options)
    async with asyncio.timeout(LIMIT_S):
        return await episode(policy, row), policy.notes, script.asked


async def test_a_task_is_scored_by_its_own_reward_and_its_metrics_are_kept():
    row = rows(SUCCESSORS)[3]
    result, notes, asked = await play(SUCCESSORS, row, "4")
    assert (result, notes.metrics) == (1.0, {"length": 1.0, "reward_right": 1.0})
    assert asked[0]["chat"] == [{"role": "user", "content": "3"}]
    assert (await play(SUCCESSORS, row, "5"))[0] == 0.0
    assert is_taskset(load_agent(SUCCESSORS, "auto"))


async def test_episodes_side_by_side_each_ask_their_own_policy():
    episode = make_episode(load_agent(SUCCESSORS, "verifiers"), kind="verifiers")
    found = rows(SUCCESSORS)
    rewards = await asyncio.gather(
        *(episode(AgentPolicy(Script(row["task"]["answer"]), seed=1), row) for row in found)
    )
    assert rewards == [1.0] * len(found)


async def test_tools_of_a_task_are_called_and_a_bad_call_is_told_to_the_policy(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as processes of agents have it
    calls = [(("safe_opened", '{"key": "7"}'),), (("safe_opened", "{"),), (("unlock", "{}"),)]
    row = rows(f"{TASKS}:Secrets")[0]
    result, _, asked = await play(f"{TASKS}:Secrets", row, *calls, "it is 77")
    assert result == 1.0
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["safe_opened"]
    told = [message["content"] for message in asked[-1]["chat"] if message["role"] == "tool"]
    assert told[0] == "it holds 77"
    assert told[1].startswith("Error: the arguments of safe_opened are no JSON")
    assert told[2].startswith("Error: there is no tool 'unlock'")


async def test_a_budget_that_is_spent_stops_the_task_which_scores_what_there_is():
    result, notes, _ = await play(SUCCESSORS, rows(SUCCESSORS)[3])  # no answer at all
    assert (result, notes.limit) == (0.0, "turns")


async def test_what_a_task_raises_is_its_own_fault_in_words():
    setup, reward, _ = rows(f"{TASKS}:Bads")
    with pytest.raises(RuntimeError, match=r"TaskError: .*LookupError: no such thing"):
        await play(f"{TASKS}:Bads", setup, "x")
    with pytest.raises(RuntimeError, match=r"TaskError: .*ZeroDivisionError: by nothing"):
        await play(f"{TASKS}:Bads", reward, "x")


async def test_what_cannot_be_asked_is_raised_as_it_is():
    class Refusing:
        async def ask(self, question):
            raise ValueError("The chat template refuses the messages.")

    episode = make_episode(load_agent(SUCCESSORS, "verifiers"), kind="verifiers")
    with pytest.raises(ValueError, match="The chat template refuses"):
        await episode(AgentPolicy(Refusing(), seed=1), rows(SUCCESSORS)[0])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("no_such_taskset", {}, "There is no taskset 'no_such_taskset'"),
        (f"{TASKS}:Bad", {}, r"expected a subclass of `verifiers.v1.Taskset`"),
        ("harbor", {}, r"'harbor' is played by the environment HarborEnv of verifiers, .* one agent plays"),
        ("verifiers.v1:SingleAgentEnv", {}, "is played by the environment SingleAgentEnv"),
        (SUCCESSORS, {"digit": "3"}, r"cannot be made with \{'digit': '3'\}.*SuccessorsConfig"),
        (SUCCESSORS, {"harness": "no_such"}, "the harness 'no_such'"),
    ],
)
def test_what_cannot_be_made_is_named(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make_episode(load_agent(name, "verifiers"), kind="verifiers", options=options)


def test_a_row_that_is_no_task_is_named():
    with pytest.raises(ConfigError, match=r"The column `task` of a row is 'None'"):
        asyncio.run(play(SUCCESSORS, {}, "4"))


@pytest.mark.thorough
async def test_a_taskset_is_trained(tmp_path):
    overrides = [
        "run.steps=3",
        f"run.dir={tmp_path}",
        "logging.console=quiet",
        "controller.attach_timeout_s=600",
    ]
    config = load_config(str(ROOT / "examples/environments/verifiers.yaml"), overrides)
    async with Controller(config) as controller:
        lines = [step.metrics async for step in controller.train()]
    assert [line["policy_version"] for line in lines] == [1, 2, 3]
    assert all(0 <= line["reward/mean"] <= 1 for line in lines)
    assert json.loads((tmp_path / "environment_verifiers/summary.json").read_text())
