"""A run that was killed in the middle is the run that was not, number by number."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from test_killed_runs import PROGRAM, run_until, trained
from test_whole_runs import config

from controller import Controller

STEPS = 20
SAME = ("loss", "grad_norm", "entropy", "reward/mean", "response_length/mean", "tokens", "lr")
KILLED = PROGRAM.replace("test_killed_runs", "test_resumed_runs")


def settings(run_dir: Path):
    """At bound 0 what is trained does not depend on timing, but for the last bit of rollout logprobs: a
    decode batch that is composed otherwise is rounded otherwise. So no weight is made of them here."""
    return config(
        run_dir,
        run={"steps": STEPS},
        staleness={"max_staleness": 0},
        trainer={"checkpoint_steps": 4, "importance": "none", "lr_schedule": "cosine", "minibatches": 2},
    )


async def test_ten_steps_a_kill_and_ten_more_equal_twenty_straight_bit_for_bit(tmp_path):
    for name in ("straight", "killed"):
        if name == "killed":
            await run_until(tmp_path / name, "step 10", KILLED)
        async with Controller(settings(tmp_path / name)) as controller:
            made = [step.policy_version async for step in controller.train()]
        assert made[-1] == STEPS
    assert 10 <= made[0] <= 12
    runs = [tmp_path / name / "run" for name in ("straight", "killed")]
    straight, killed = (
        list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines())) for run in runs
    )
    assert [[line[key] for key in SAME] for line in killed] == [
        [line[key] for key in SAME] for line in straight
    ]
    assert trained(runs[0]) == trained(runs[1])
    for file in ("model.safetensors", "trainer/state.safetensors"):
        first, second = (load_file(run / "checkpoints" / f"step_{STEPS}" / file) for run in runs)
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []
