"""A trainer that torchrun starts from outside, two ranks, one of which is killed: the run goes on."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from local_workers import below, command_line
from test_supervised_runs import STEPS, config
from test_whole_runs import left_behind

from controller import Controller
from controller.durability.recording import Recording
from controller.durability.replay import replay

ROOT = Path(__file__).parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=2")
QUIET = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def rank(number: int) -> psutil.Process:
    """The process of a rank of this test's torchrun."""
    lines = {process: command_line(process) for process in below()}
    ranks = [
        process
        for process, line in lines.items()
        if "-m workers.host " in line and "torch.distributed.run" not in line
    ]
    return next(process for process in ranks if process.environ().get("RANK") == str(number))


# ranks that are killed and begin anew are what test_supervised_runs.py is about, ranks of torchrun
# test_returning_trainers.py
@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 1])
async def test_torchrun_begins_a_killed_rank_anew_and_the_run_goes_on_from_a_checkpoint(tmp_path, victim):
    settings = config(tmp_path, local=False, checkpoint_steps=3)
    warnings: list[str] = []
    async with Controller(settings, on_warning=warnings.append) as controller:
        torchrun = await asyncio.create_subprocess_exec(
            sys.executable, *TORCHRUN, "--standalone", "-m", "workers.host", str(controller.run_dir),
            "--role", "trainer", cwd=tmp_path, env=QUIET,
        )  # fmt: skip
        steps = []
        async for step in controller.train():
            steps.append(step.policy_version)
            if step.policy_version == 8:
                rank(victim).send_signal(signal.SIGKILL)
        assert await torchrun.wait() == 0
    assert steps == list(range(1, STEPS + 1))
    assert controller.summary["is_success"]
    assert controller.summary["counts"]["trainer/steps_again"] >= 1
    assert any("trainer.local is off" in warning for warning in warnings)
    with Recording(controller.run_dir) as recording:
        assert replay(recording).is_equal
    assert not left_behind()
