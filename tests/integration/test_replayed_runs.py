"""Journals of real runs are re-derived, whether their controller has finished, goes on, or was killed."""

import asyncio
import json
from pathlib import Path

import psutil
from local_workers import local_workers
from test_whole_runs import config

from controller import Controller
from controller.durability.recording import Recording
from controller.durability.replay import Verdict, replay
from controller.history.compare_strategies import other_config
from controller.history.story import story
from controller.simulation import whatif
from controller.simulation.whatif import go_on
from tests.support.prepared_program import start_program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENDLESS = """
import asyncio, sys
from pathlib import Path
from test_whole_runs import config
from controller import Controller

async def main():
    settings = config(Path(sys.argv[1]), run={"steps": 5000})
    async with Controller(settings) as controller:
        async for step in controller.train():
            print(step.policy_version, flush=True)

asyncio.run(main())
"""


def replayed(run: Path) -> Verdict:
    with Recording(run) as recording:
        assert recording.other_release() == ""
        return replay(recording)


async def test_a_run_with_a_killed_worker_is_re_derived_while_it_goes_on_and_after(tmp_path):
    async with Controller(config(tmp_path, run={"steps": 8})) as controller:
        async for step in controller.train():
            if step.policy_version == 2:
                local_workers("rollout-0")[0].kill()
            if step.policy_version == 6:
                verdict = replayed(controller.run_dir)
                assert verdict.is_equal, verdict
                assert verdict.steps >= 5
    verdict = replayed(tmp_path / "run")
    assert verdict.is_equal, verdict
    assert verdict.finished
    assert (verdict.steps, verdict.unfingerprinted) == (8, 0)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert verdict.commands["ReportStep"] == last["step"] == 8
    with Recording(tmp_path / "run") as recording:
        assert any("Train 0.0 in the batch of version 0" in line for line in story(recording, 0))
        comparison = go_on(recording, other_config(recording.config(), "areal", []))
        # bound + 2 are skipped, and up to one more for whole cycles of two or three; the last is not complete
        assert {comparison.own.steps, comparison.other.steps} <= {whatif.STEPS - 5, whatif.STEPS - 6}


async def test_a_killed_controller_leaves_a_journal_that_is_re_derived_to_its_last_event(tmp_path):
    process = await start_program(ENDLESS, str(tmp_path), paths=[ROOT, HERE])
    while int(await process.stdout.readline()) < 3:
        pass
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    await process.wait()
    await asyncio.to_thread(psutil.wait_procs, workers)  # they leave when their parent is gone
    verdict = replayed(tmp_path / "run")
    assert verdict.is_equal, verdict
    assert not verdict.finished
    assert verdict.steps >= 3
    assert 1 <= verdict.unfingerprinted < verdict.events
