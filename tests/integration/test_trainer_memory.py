"""What each rank of a trainer holds, counted where it is allocated."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.check.memory import memory_of
from controller.config.models import Config

WEIGHTS = 4_853_888  # of the benchmark's model
ACTIVATIONS = 2_300_000  # bytes, of the benchmark's micro-batch
PARTS = {"weights": "weights", "moments": "AdamW's moments", "gradient": "gradient"}
BYTES = {"weights": 4, "moments": 8, "gradient": 4}


def counted(ranks, when):
    command = [sys.executable, "-m", "benchmarks.trainer_memory", "--json", "--ranks", str(ranks)]
    ended = subprocess.run(
        [*command, "--reduce", when],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 4))])
def test_each_rank_keeps_its_share_and_no_whole_gradient(ranks):
    found = counted(ranks, "every_microbatch")
    assert len(found) == ranks
    config = Config.model_validate({"trainer": {"ranks": ranks, "reduce_gradients": "every_microbatch"}})
    layer = found[0]["unit"] // 4
    weights = {f"model.layers.{number}.w": (layer,) for number in range(6)} | {"w": (WEIGHTS - 6 * layer,)}
    estimate = memory_of(config, {"vocab_size": 512}, weights).rank
    for rank in found:
        for kind, size in BYTES.items():
            assert rank["kept"][kind] == pytest.approx(size * WEIGHTS / ranks, rel=0.1), kind
            assert rank["kept"][kind] == pytest.approx(estimate[PARTS[kind]], rel=0.1), "what check says"
        activations = rank["transient"] - estimate["layers in passing"]
        assert -0.1 * estimate["layers in passing"] < activations < rank["unit"]
        rest = 4 * WEIGHTS - 6 * rank["unit"]  # of no layer: its weights, and its gradient until the end
        assert rank["transient"] < 3.0 * rank["unit"] + 2 * rest + ACTIVATIONS
        assert rank["metrics"] == pytest.approx(found[0]["metrics"], abs=1e-6)


@pytest.mark.thorough
def test_gradients_that_cross_at_the_end_of_a_step_are_whole_until_then():
    for rank in counted(2, "every_step"):
        assert rank["kept"]["gradient"] == pytest.approx(4 * WEIGHTS, rel=0.1)
