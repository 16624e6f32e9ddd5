"""A real server of OpenEnv, where openenv-core is installed: `launch.py test --thorough` sees to that."""

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller import Controller, load_config
from protocol.errors import ConfigError
from tests.support.ports import free_port
from tests.unit.workers.agent.kinds.test_agent_kinds import Script
from workers.agent.kinds.chosen_kind import load_agent, make_episode
from workers.agent.kinds.openenv_wire import OpenEnvSession, check_sessions
from workers.agent.kinds.results import Returned
from workers.agent.policy import AgentPolicy, EnvironmentFailed

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("openenv") is None,
        reason="not installed: pip install -e '.[openenv-core]'",
    ),
    pytest.mark.filterwarnings("ignore"),  # of its libraries
]
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "environments"
SESSIONS = 8
ROW = {"first": "3"}


@contextmanager
def serving(*words):
    """The address of a server that this program runs, given a port."""
    port = free_port()
    command = [sys.executable, words[0], str(port), *words[1:]]
    with tempfile.TemporaryFile() as told:  # a pipe that nobody reads would stop it
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            except (urllib.error.URLError, ConnectionError):
                told.seek(0)
                assert process.poll() is None, told.read().decode()
        yield f"http://127.0.0.1:{port}"
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server():
    with serving(str(FOLDER / "openenv_server.py"), str(SESSIONS)) as address:
        yield address


@pytest.fixture(scope="module", params=["served", "in process"])
def safe(request):
    """An environment whose actions are calls of tools."""
    program = Path(__file__).parent / "connected_mcp.py"
    if request.param == "in process":
        yield f"{program}:Safe"
        return
    with serving(str(program)) as address:
        yield address


async def play(target, *answers, options=None, row=ROW):
    script = Script(*answers)
    policy = AgentPolicy(script, seed=5)
    result = await make_episode(load_agent(target, "auto"), options=options or {"reset": "first"})(
        policy, row
    )
    return result, policy.notes, [talk["chat"][-1]["content"] for talk in script.asked]


async def test_episodes_side_by_side_have_sessions_of_their_own_and_equal_seeds_are_equal(server):
    found = await asyncio.gather(*(play(server, "4", "x", "x") for _ in range(SESSIONS)))
    assert all(one[1].rewards[0] == pytest.approx(1 / 3) for one in found)
    assert all(one[2] == found[0][2] for one in found)
    assert found[0][2][0] == "3"


async def test_the_ninth_session_is_named_at_the_start_and_in_the_run(server):
    await check_sessions(server, SESSIONS)
    with pytest.raises(ConfigError, match=r"admits 8 sessions at once, and agent.concurrency is 9"):
        await check_sessions(server, SESSIONS + 1)
    held = [OpenEnvSession(server) for _ in range(SESSIONS)]
    await asyncio.gather(*(one.reset({"first": "3"}) for one in held))
    with pytest.raises(EnvironmentFailed, match=r"agent[.]concurrency"):
        await play(server, "4")
    await asyncio.gather(*(one.close() for one in held))


async def test_a_class_is_played_as_its_server_is(server):
    served = await play(server, "4", "5", "6")
    assert await play(f"{FOLDER}/openenv_server.py:Digits", "4", "5", "6") == served


async def test_tools_of_an_environment_are_called_and_a_bad_call_is_told(safe):
    calls = [
        (("opened", '{"key": 1}'), ("opened", '{"key": 7}')),
        (("opened", '{"lock": 7}'),),
        (("unlock", "{}"),),
        (("answer", '{"secret": "gold 5"}'),),
    ]
    script = Script(*calls)
    policy = AgentPolicy(script, seed=5)
    result = await make_episode(load_agent(safe, "auto"))(policy, {"prompt": "open the safe"})
    assert (result, policy.notes.rewards) == (Returned.TURN_REWARDS, {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0})
    first, last = script.asked[0], script.asked[-1]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["opened", "answer"]
    assert first["tools"][0]["function"]["parameters"]["properties"]["key"]["type"] == "integer"
    told = [message["content"] for message in last["chat"] if message["role"] == "tool"]
    assert told[:2] == ["it stays shut", "it holds gold 5"]
    assert len(told) == 4
    assert all("rror" in text for text in told[2:])


@pytest.mark.thorough
async def test_an_environment_behind_a_server_is_trained(server, tmp_path):
    overrides = [
        "run.steps=3", f"run.dir={tmp_path}", "logging.console=quiet", "controller.attach_timeout_s=600",
        f"agent.function={server}", f"agent.concurrency={SESSIONS}", "rollout.group_size=4",
    ]  # fmt: skip
    config = load_config(str(FOLDER / "openenv.yaml"), overrides)
    async with Controller(config) as controller:
        lines = [step.metrics async for step in controller.train()]
    assert [line["policy_version"] for line in lines] == [1, 2, 3]


@pytest.mark.thorough
async def test_a_policy_that_calls_tools_of_a_server_is_trained(tmp_path):
    with serving(str(FOLDER / "openenv_calculator.py"), "32") as address:
        overrides = [
            "run.steps=3", f"run.dir={tmp_path}", "logging.console=quiet", "controller.attach_timeout_s=600",
            f"agent.function={address}", "agent.concurrency=32", "trainer.batch_groups=4",
        ]  # fmt: skip
        async with Controller(load_config(str(FOLDER / "openenv_tools.yaml"), overrides)) as controller:
            lines = [step.metrics async for step in controller.train()]
    assert [line["policy_version"] for line in lines] == [1, 2, 3]
    assert any(line["turns/max"] > 1 for line in lines), "no tool was called"
