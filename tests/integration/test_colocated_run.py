"""Real runs whose instances and trainer use the same devices in turn, whole and with everybody killed."""

import signal
from pathlib import Path

import pytest
from local_workers import local_workers
from test_killed_runs import check_whole, run_until
from test_whole_runs import config, left_behind, run_to_the_end

from controller import Controller
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay
from workers.trainer.saved.kept_aside import FILE

PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_colocated_run import settings
from controller import Controller
from tests.support.heard_program import say

async def main():
    tell = lambda _, text: say(text)
    async with Controller(settings(Path(sys.argv[1]), steps=9), on_progress=tell) as controller:
        async for step in controller.train():
            say(f"step {step.policy_version}")

asyncio.run(main())
"""


def settings(run_dir: Path, *, steps: int, ranks: int = 1) -> Config:
    made = config(
        run_dir,
        run={"steps": steps},
        trainer={"checkpoint_steps": 4, "ranks": ranks},
        staleness={"max_staleness": 1},
    )
    return Config.model_validate(made.model_dump() | {"placement": "colocated"})


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.costly)])
async def test_both_sides_of_a_run_have_the_device_in_turn_and_leave_nothing_on_it(tmp_path, ranks):
    lines, summary = await run_to_the_end(settings(tmp_path, steps=3, ranks=ranks))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert summary["device/changes"] >= 6, "there and back with each step"
    assert summary["device/rollout_peak_mb"] > 0 < summary["device/trainer_peak_mb"]
    assert summary["device/trainer_left_mb"] == 0
    assert summary["device/rollout_left_mb"] < 0.01 * summary["device/rollout_peak_mb"], "buffers"
    assert lines[0]["logprob_gap_p99"] < 1e-4, "instances sample from the weights that are trained"
    assert lines[2]["logprob_gap_p99"] < 1e-4, "and the trainer goes on with what it had kept aside"
    assert not list((tmp_path / "run").glob(FILE.format(rank="*")))
    assert not left_behind()
    check_whole(tmp_path / "run", steps=3)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_killed_controller_trainer_and_instance_of_one_device_lose_nothing(tmp_path, ranks):
    for words in ("trainer is ready", "step 2", "step 4"):
        await run_until(tmp_path, words, PROGRAM.replace("steps=9", f"steps=9, ranks={ranks}"))
    async with Controller(settings(tmp_path, steps=9, ranks=ranks)) as controller:
        killed = iter(("trainer", "rollout-0", "trainer"))
        async for step in controller.train():
            if step.policy_version < 9 and (name := next(killed, None)):
                for process in local_workers(name):
                    process.send_signal(signal.SIGKILL)
    assert controller.summary["counts"]["workers/respawned"] >= 2
    assert not left_behind()
    check_whole(tmp_path / "run", steps=9)
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).epochs == 4
