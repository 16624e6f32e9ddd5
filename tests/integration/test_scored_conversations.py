"""A real run whose agent leaves its reward to a function that reads the messages; and the same by `eval`."""

import json

import pytest
from made_model import TASK, lay_model
from test_whole_runs import config

from controller import Controller
from controller.cli.main import main
from tests.support.stub_endpoint import serving

pytestmark = pytest.mark.thorough
CODE = """
import re

LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]


async def episode(policy, row):
    messages = [{"role": "user", "content": row["prompt"]}]
    messages.append(await policy.chat(messages, tools=TOOLS))
    await policy.chat([*messages, {"role": "user", "content": "0"}], tools=TOOLS)


def score(completion, messages, turns, prompt):
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "user", "assistant"], roles
    assert messages[0]["content"] == prompt and messages[2]["content"] == "0"
    said = [re.sub("<.*?>", "", message["content"]).split() for message in messages[1::2]]
    assert said == [text.split() for text in turns], (messages, turns)
    assert completion.split() == turns[-1].split(), (completion, turns)
    return float(len(messages))
"""


@pytest.fixture
def code(tmp_path):
    file = tmp_path / "talker.py"
    file.write_text(CODE)
    return file


async def test_a_reward_function_reads_what_was_said(tmp_path, code):
    settings = config(
        tmp_path,
        run={"steps": 2},
        agent={"function": f"{code}:episode", "renderer": "plain"},
        reward={"function": f"{code}:score"},
        rollout={"max_prompt_tokens": 16, "max_response_tokens": 24},
    )
    async with Controller(settings) as controller:
        lines = [step.metrics async for step in controller.train()]
    assert [line["reward/mean"] for line in lines] == [4.0, 4.0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["is_success"], summary["reason"]


@pytest.mark.parametrize("is_endpoint", [False, True])
def test_it_reads_the_same_without_a_run(tmp_path, code, capsys, is_endpoint):
    lay_model(tmp_path / "one")
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({
        "run": {"dir": str(tmp_path), "name": "one", "steps": 1},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "agent": {"function": f"{code}:episode", "renderer": "plain"},
        "reward": {"function": f"{code}:score"},
        "rollout": {"max_prompt_tokens": 16, "max_response_tokens": 24},
    }))  # fmt: skip
    with serving("four") as stub:
        more = ["--base-url", stub.url, "--model", "small"] if is_endpoint else []
        assert main(["eval", str(path), "--rows", "2", *more, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reward/mean"] == 4.0
