"""A controller is killed under a remote rollout worker that generates: what that goes on with is kept."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from pathlib import Path

from test_remote_workers import free_port
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config import ControllerSettings
from controller.recording import Recording
from controller.replay import replay

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "integration")])
LIMIT_S = 300
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_surviving_workers import settings
from controller import Controller

async def main():
    async with Controller(settings(Path(sys.argv[1]), int(sys.argv[2]))) as controller:
        async for step in controller.train():
            print("a step", flush=True)

asyncio.run(main())
"""


def settings(folder: Path, port: int):
    made = config(
        folder,
        run={"steps": 5},
        rollout={"instances": 0, "max_response_tokens": 50, "progress_s": 60.0},  # it tells of endings alone
        trainer={"checkpoint_steps": 1},
    )
    here = ControllerSettings(bind=f"tcp://127.0.0.1:{port}", beat_s=0.5, lease_s=20.0)
    return made.model_copy(update={"controller": here})


async def test_no_token_is_sampled_twice_because_the_controller_was_killed(tmp_path, monkeypatch):
    port, log = free_port(), tmp_path / "sampled"
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "SAMPLED": str(log)}
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path), str(port), cwd=ROOT, stdout=PIPE, env=environment
    )
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "launch.py"), "attach", f"tcp://127.0.0.1:{port}", "--role", "rollout",
        "rollout.engine=counting_engine:make", stdout=PIPE, stderr=STDOUT, env=environment,
    )  # fmt: skip
    assert first.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert (await first.stdout.readline()).decode() == "a step\n"
    first.kill()
    await first.wait()
    before = len(log.read_text().splitlines())
    log.with_name(log.name + ".gate").touch()

    monkeypatch.syspath_prepend(tmp_path)  # another program may go on with the run
    async with asyncio.timeout(LIMIT_S), Controller(settings(tmp_path, port)) as controller:
        steps = [step.policy_version async for step in controller.train()]
    assert steps[-1] == 5
    assert worker.stdout is not None
    said = (await worker.stdout.read()).decode()
    assert await worker.wait() == 0
    found = re.search(r"Handed over (\d+) tokens of (\d+) responses; (\d+) of them go on", said)
    assert found is not None, said
    assert int(found[1]) > 0, said
    assert int(found[2]) > 0, said
    assert controller.summary["counts"]["trajectories/kept"] == int(found[2])
    sampled = Counter(log.read_text().splitlines())
    assert len(sampled) > before > 0
    assert set(sampled.values()) == {1}, [place for place, count in sampled.items() if count > 1]
    assert controller.summary["tokens/lost"] == 0
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()
