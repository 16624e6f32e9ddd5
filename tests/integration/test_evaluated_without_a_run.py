"""`launch.py eval` on real engines, agents and endpoints, each in a process of its own."""

import json
import shutil

import pytest
import torch
from made_model import TASK, lay_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from controller.cli.main import main
from protocol.trainer.adapters import LoraSettings
from tests.support.stub_endpoint import serving
from workers.models.lora import (
    MergedAdapter,
    adapter_config,
    read_adapter,
    shapes_of,
    target_layers,
    tensor_names,
)

pytestmark = pytest.mark.thorough
TASKS = TASK.parent
TALKER = """
async def episode(policy, row):
    messages = [{"role": "user", "content": row["prompt"]}]
    messages.append(await policy.chat(messages))
    answer = await policy.chat([*messages, {"role": "user", "content": "sure?"}])
    return float(answer["content"] == "four")
"""
EDITOR = """
async def episode(policy, row):
    messages = [{"role": "user", "content": row["prompt"]}]
    messages.append(await policy.chat(messages))
    messages[-1]["content"] = "nothing"
    await policy.chat([*messages, {"role": "user", "content": "sure?"}])
    return 1.0
"""
WORKFLOW = """
import asyncio, json, urllib.request

async def run(data, base_url, api_key):
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": data["prompt"]}]})
    request = urllib.request.Request(base_url + "/chat/completions", body.encode())
    answer = json.loads((await asyncio.to_thread(urllib.request.urlopen, request)).read())
    return {"an id of theirs": float(answer["choices"][0]["message"]["content"] == "four")}
"""


def configured(tmp_path, **sections):
    """The path of a configuration whose run has its model."""
    lay_model(tmp_path / "one")
    tree = {
        "run": {"dir": str(tmp_path), "name": "one", "steps": 1},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "reward": {"function": f"{TASK}:reward"},
        "rollout": {"max_prompt_tokens": 16, "max_response_tokens": 24},
        **sections,
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(tree))  # which is YAML, too
    return str(path)


def evaluated(capsys, *arguments):
    """The exit code and the line."""
    code = main(["eval", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_checkpoint_answers_prompts_and_equal_calls_give_equal_figures(tmp_path, capsys):
    path = configured(tmp_path)
    code, line = evaluated(capsys, path, "--rows", "8", "--samples", "4")
    assert code == 0
    assert (line["prompts"], line["responses"], line["failed"]) == (8, 32, 0)
    assert 0 < line["reward/mean"] < 1
    assert evaluated(capsys, path, "--rows", "8", "--samples", "4") == (0, line)


def lay_adapter(model, place):
    """An adapter of random weights as a run saves it, and beside it the same, merged, as a whole model."""
    lora = LoraSettings(rank=2, alpha=4.0)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    layers = target_layers(plain, lora)
    torch.manual_seed(3)
    tensors = {}
    for name, (rows, columns) in shapes_of(layers).items():
        a, b = tensor_names(name)
        tensors |= {a: torch.randn(2, columns), b: 0.3 * torch.randn(rows, 2)}
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps(adapter_config(lora, layers, model)))
    save_file(tensors, place / "adapter_model.safetensors")
    (place / ".complete").touch()
    MergedAdapter(plain, lora, model).load(read_adapter(place, model))
    merged = place.parent.parent / "merged"
    shutil.copytree(model, merged)
    plain.save_pretrained(merged)
    return merged


def test_an_adapter_answers_as_the_model_with_it_merged_in(tmp_path, capsys):
    path = configured(tmp_path)
    model = tmp_path / "one" / "model"
    merged = lay_adapter(model, tmp_path / "one" / "checkpoints" / "step_5")
    asked = (path, "--rows", "8", "--samples", "4")
    code, line = evaluated(capsys, *asked)
    assert code == 0
    assert evaluated(capsys, *asked, "--checkpoint", str(merged)) == (0, line)
    assert evaluated(capsys, *asked, "--checkpoint", str(model)) != (0, line)
    assert main(["eval", *asked, f"model.path={merged}"]) == 2  # of the same shapes
    assert "The adapter belongs to a model whose weight files" in capsys.readouterr().err


def test_a_checkpoint_plays_episodes_that_fork(tmp_path, capsys):
    path, file = configured(tmp_path), tmp_path / "t.jsonl"
    agent = f"agent.function={TASKS}/forking_turns.py:episode"
    code, line = evaluated(capsys, path, agent, "--rows", "4", "--samples", "2", "-o", str(file))
    assert (code, line["prompts"], line["failed"], line["turns/mean"]) == (0, 4, 0, 5.0)  # as in a run
    kept = [json.loads(told) for told in file.read_text().splitlines()]
    assert len(kept) == 8
    assert all(len(told["transcript"]) == 5 for told in kept)


def test_an_endpoint_plays_episodes_without_a_model_here(tmp_path, capsys):
    (tmp_path / "talker.py").write_text(TALKER)
    path = configured(tmp_path, reward={"function": ""})
    agent, model = f"agent.function={tmp_path}/talker.py:episode", ("--model", "small")
    with serving("four") as stub:
        code, line = evaluated(capsys, path, agent, "--base-url", stub.url, *model, "--rows", "3")
        assert (code, line["pass@1"], line["turns/mean"], line["tokens"]) == (0, 1.0, 2.0, 18)
        assert stub.asked[-1]["messages"][-1]["content"] == "sure?"
    with serving((404, "no such model")) as stub:
        assert main(["eval", path, agent, "--base-url", stub.url, *model, "--rows", "3"]) == 2
        assert "no such model" in capsys.readouterr().err


def test_forks_at_an_endpoint_are_told_by_their_cause(tmp_path, capsys):
    (tmp_path / "editor.py").write_text(EDITOR)
    path, agent = configured(tmp_path), f"agent.function={tmp_path}/editor.py:episode"
    with serving("four") as stub:
        _, line = evaluated(capsys, path, agent, "--base-url", stub.url, "--model", "m", "--rows", "2")
        assert (line["turns/mean"], line["forks/edited"]) == (2.0, 1.0)


def test_a_function_for_another_system_plays_at_an_endpoint_whose_ids_are_its_own(tmp_path, capsys):
    (tmp_path / "talker.py").write_text(WORKFLOW)
    path = configured(tmp_path, reward={"function": ""})
    agent, model = f"agent.function={tmp_path}/talker.py:run", ("--model", "small")
    with serving("four") as stub:
        code, line = evaluated(capsys, path, agent, "--base-url", stub.url, *model, "--rows", "3")
        assert (code, line["pass@1"], line["failed"]) == (0, 1.0, 0)
        assert stub.asked[-1]["model"] == "small"


def test_an_agent_that_fails_is_named_and_in_no_figure(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("async def episode(policy, row):\n    raise KeyError('gone')\n")
    agent = f"agent.function={tmp_path}/bad.py:episode"
    code, line = evaluated(capsys, configured(tmp_path), agent, "--rows", "2")
    assert (code, line["prompts"], line["failed"]) == (1, 0, 2)
    assert "KeyError: 'gone'" in line["failures"][0]
