"""A controller is killed under a rollout worker that generates: what a remote one goes on with is kept, and
what a local one leaves."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from pathlib import Path

import pytest
from counting_engine import LATE
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config.models import Config, ControllerSettings
from controller.durability.recording import Recording
from controller.durability.replay import replay
from tests.support.ports import free_port
from tests.support.prepared_program import PreparedProcess, start_program

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "integration")])
LIMIT_S = 300
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_surviving_workers import settings
from controller import Controller

async def main():
    async with Controller(settings(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))) as controller:
        async for step in controller.train():
            print("a step", flush=True)

asyncio.run(main())
"""


def settings(folder: Path, port: int, instances: int):
    made = config(
        folder,
        run={"steps": 5},
        rollout={
            "instances": instances,
            "engine": "counting_engine:make" if instances else "torch",
            "max_response_tokens": 50,
            "progress_s": 60.0,  # it tells of endings alone
        },
        trainer={"checkpoint_steps": 1},
        staleness={"partial_rollout": False},  # else a pull might have taken all from it when the kill comes
    )
    here = ControllerSettings(bind=f"tcp://127.0.0.1:{port}", beat_s=0.5, lease_s=20.0)
    return made.model_copy(update={"controller": here})


async def test_no_token_is_sampled_twice_because_the_controller_was_killed_under_a_remote_worker(
    tmp_path, monkeypatch
):
    port, log = free_port(), tmp_path / "sampled"
    environment = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1", "SAMPLED": str(log)}
    first = await begin(tmp_path, port, 0, environment)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "launch.py"), "attach", f"tcp://127.0.0.1:{port}", "--role", "rollout",
        "rollout.engine=counting_engine:make", stdout=PIPE, stderr=STDOUT, env=environment,
    )  # fmt: skip
    before = await kill_after_a_step(first, log)
    log.with_name(log.name + ".gate").touch()
    assert worker.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        said = (await worker.stdout.readuntil(LATE.encode())).decode()  # to no controller

    monkeypatch.syspath_prepend(tmp_path)  # another program may go on with the run
    summary = await go_on(settings(tmp_path, port, 0))
    said += (await worker.stdout.read()).decode()
    assert await worker.wait() == 0
    found = re.search(r"Handed over (\d+) tokens of (\d+) responses; (\d+) of them go on", said)
    assert found is not None, said
    assert int(found[1]) > 0, said
    assert int(found[2]) > 0, said
    assert summary["counts"]["trajectories/kept"] == int(found[2])
    check_sampled_once(tmp_path, log, before)
    assert summary["tokens/lost"] == 0


@pytest.mark.costly
async def test_what_a_local_worker_had_in_hand_when_the_controller_was_killed_is_handed_over_by_the_next(
    tmp_path, monkeypatch
):
    port, log = free_port(), tmp_path / "sampled"
    monkeypatch.setenv("SAMPLED", str(log))
    monkeypatch.syspath_prepend(ROOT / "tests" / "integration")
    first = await begin(tmp_path, port, 1, {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"})
    before = await kill_after_a_step(first, log)
    log.with_name(log.name + ".gate").touch()
    summary = await go_on(settings(tmp_path, port, 1))
    said = (tmp_path / "run" / "logs" / "rollout-0.log").read_text()
    found = re.search(r"Handed over (\d+) tokens of (\d+) responses of the worker before", said)
    assert found is not None, said
    assert int(found[1]) > 0, said
    check_sampled_once(tmp_path, log, before)
    assert summary["tokens/lost"] == 0


async def begin(folder: Path, port: int, instances: int, environment: dict[str, str]) -> PreparedProcess:
    words = map(str, (folder, port, instances))
    return await start_program(PROGRAM, *words, environment=environment)


async def kill_after_a_step(controller: PreparedProcess, log: Path) -> int:
    """Tokens sampled by then."""
    async with asyncio.timeout(LIMIT_S):
        assert (await controller.stdout.readline()).decode() == "a step\n"
    controller.kill()
    await controller.wait()
    return sampled(log)


def sampled(log: Path) -> int:
    return len(log.read_text().splitlines())


async def go_on(settings: Config) -> dict:
    async with asyncio.timeout(LIMIT_S), Controller(settings) as controller:
        steps = [step.policy_version async for step in controller.train()]
    assert steps[-1] == 5
    return controller.summary


def check_sampled_once(folder: Path, log: Path, before: int) -> None:
    places = Counter(log.read_text().splitlines())
    assert len(places) > before > 0
    assert set(places.values()) == {1}, [place for place, count in places.items() if count > 1]
    with Recording(folder / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()
