"""Whole runs on pretended GPUs: what computes is on `cuda`, and no tensor is on the wrong side."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_whole_runs import config, left_behind, run_to_the_end

from controller.config.models import Config
from tests.support.pretended_gpus import COMPILER, compiled, environment, used

pytestmark = [
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="a compiler makes the device"),
]
RUNS = {
    "two ranks in bfloat16": {
        "model": {"dtype": "bfloat16"},
        "trainer": {"ranks": 2, "kl_coefficient": 0.01},
    },
    "in turn": {"placement": "colocated", "trainer": {"ranks": 2}},
    "streaming": {
        "trainer": {"streaming": True, "activation_checkpointing": True, "entropy_coefficient": 0.01},
    },
    "offloaded": {"trainer": {"cpu_offload": True}, "staleness": {"keep_kv": True}},
    "a critic": {"trainer": {"algorithm": "ppo"}, "rollout": {"sampling": {"top_p": 0.9, "top_k": 5}}},
}
FIRST = "two ranks in bfloat16"
MIXTURE = """
import torch
a, b = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
print(a.device, (a @ a).device, float((a @ a).sum()), a[torch.tensor([0])].device)
for wrong in (lambda: a @ b, lambda: torch.where(a > 0, a, b), lambda: a.numpy()):
    try:
        print("accepted", wrong())
    except (RuntimeError, TypeError) as error:
        print("refused", "same device" in str(error) or "convert cuda" in str(error))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    return compiled(tmp_path_factory.mktemp("device"))


def test_what_is_pretended_refuses_what_a_gpu_refuses(library):
    command = [sys.executable, "-c", MIXTURE]
    done = subprocess.run(command, env=environment(library, gpus=1), capture_output=True, text=True)
    assert done.stdout.splitlines() == ["cuda:0 cuda:0 8.0 cuda:0", *["refused True"] * 3], done.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == FIRST else pytest.mark.costly) for name in RUNS]
)
async def test_a_run_computes_on_gpus(name, library, tmp_path, monkeypatch):
    used(library)
    for variable, value in environment(library, gpus=4).items():
        monkeypatch.setenv(variable, value)
    tree = config(
        tmp_path, run={"steps": 3}, controller={"fork_workers": False}, rollout={"instances": 2}
    ).model_dump()  # fmt: skip
    for section, change in RUNS[name].items():
        tree[section] = tree[section] | change if isinstance(change, dict) else change
    lines, summary = await run_to_the_end(Config.model_validate(tree))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert summary["staleness/violations"] == 0
    ranks = tree["trainer"]["ranks"]
    first, second = ("0", "1") if "placement" in RUNS[name] else (str(ranks), str(ranks + 1))
    on = {"trainer": {str(rank) for rank in range(ranks)}, "rollout-0": {first}, "rollout-1": {second}}
    assert used(library) == on
    gap = 0.2 if tree["model"]["dtype"] == "bfloat16" else 1e-3
    assert lines[0]["logprob_gap_p99"] < gap, "instances sample from the weights that are trained"
    assert not left_behind()
