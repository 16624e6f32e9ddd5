"""A whole run that trains an adapter: real processes, a kill in the middle, a checkpoint that peft loads."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_killed_runs import PROGRAM, run_until, trained
from test_trainer_ranks import assert_alike, lead, prepared, run_ranks  # noqa: F401 - a fixture
from test_whole_runs import TWO, config, left_behind
from transformers import AutoModelForCausalLM

from controller import Controller
from protocol.errors import ConfigError

pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[workers,lora]'")
STEPS, GROUPS = 16, 8
KILLED = PROGRAM.replace("test_killed_runs", "test_adapter_runs")


def settings(run_dir: Path, *, rank: int = 4, **lora):
    return config(
        run_dir,
        run={"steps": STEPS},
        rollout=TWO,
        trainer={
            "batch_groups": GROUPS,
            "checkpoint_steps": 4,
            "lr": 0.02,
            "lora": {"rank": rank, "alpha": 8, **lora},
        },
    )


async def test_the_reward_rises_over_a_kill_while_adapters_alone_are_published_and_saved(tmp_path):
    run = tmp_path / "run"
    await run_until(tmp_path, "step 6", KILLED)
    for other, alpha in ((0, 32), (8, 8)):  # an alpha of no adapter is refused by itself
        with pytest.raises(ConfigError, match=rf"trainer\.lora\.rank: 4 there, {other} now"):
            async with Controller(settings(tmp_path, rank=other, alpha=alpha)):
                pass
    async with Controller(settings(tmp_path)) as controller:
        made = [step.policy_version async for step in controller.train()]
    assert 6 <= made[0] <= 8
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2, rewards
    assert max(line["mismatch_kl"] for line in lines) < 0.5
    batches = trained(run)
    assert len(set().union(*batches.values())) == GROUPS * STEPS
    assert not left_behind()
    sizes = {int(n) for n in re.findall(r"of (\d+) bytes each", (run / "logs" / "trainer.log").read_text())}
    whole = (run / "model" / "model.safetensors").stat().st_size
    assert len(sizes) == 1
    newest = run / "checkpoints" / f"step_{STEPS}"
    adapter = load_file(newest / "adapter_model.safetensors")
    numbers = sum(tensor.numel() for tensor in adapter.values())
    assert sizes.pop() <= 4 * numbers + 8192 < whole
    plain = AutoModelForCausalLM.from_pretrained(run / "model")
    before = plain(torch.tensor([[1, 2, 3]])).logits
    plain.load_adapter(str(newest))
    assert not torch.allclose(plain(torch.tensor([[1, 2, 3]])).logits, before, atol=1e-2)
    resume = settings(tmp_path / "other").model_dump(mode="json")
    with pytest.raises(ConfigError, match="holds a LoRA adapter and no model"):
        config_from(resume, newest, tmp_path)


def config_from(tree, checkpoint, folder):
    """As a configuration file that begins from this checkpoint."""
    import yaml

    from controller import load_config

    file = folder / "again.yaml"
    file.write_text(yaml.safe_dump(tree))
    return load_config(str(file), [f"run.resume={checkpoint}"])


def test_two_ranks_train_the_adapter_that_one_does(prepared, tmp_path):  # noqa: F811
    options = {"lora": {"rank": 3}, "kl_coefficient": 0.1}
    one, _, model_directory = prepared("one", **options)
    expected = lead(one, str(model_directory))["metrics"]
    ended = run_ranks(model_directory, "train", (prepared("two", **options)[1], 2))
    assert ended.returncode == 0, ended.stderr
    assert_alike(json.loads(ended.stdout)["metrics"], expected)
    saved = (
        load_file(tmp_path / name / "checkpoints/step_3/adapter_model.safetensors") for name in ("one", "two")
    )
    first, second = saved
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
