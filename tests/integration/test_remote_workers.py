"""Workers with keys, attached over tcp by the command line: they come, are revoked, paused, and outlive a
controller."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path

import pytest
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config.models import ControllerSettings
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.errors import ConfigError
from protocol.wire.security import make_keys, revoke
from tests.support.ports import free_port
from tests.support.prepared_program import start_program

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_remote_workers import settings
from controller import Controller

async def main():
    async with Controller(settings(Path(sys.argv[1]), int(sys.argv[2]))) as controller:
        async for step in controller.train():
            if any(w.name == "node1" and w.policy_version >= 0 for w in controller.snapshot().workers):
                print("node1 works", flush=True)

asyncio.run(main())
"""


def settings(folder: Path, port: int, *, lease_s: float = 5.0):
    made = config(
        folder,
        run={"steps": 5000},
        rollout={"instances": 1, "progress_s": 0.05},
        trainer={"checkpoint_steps": 4},
    )
    here = ControllerSettings(
        bind=f"tcp://127.0.0.1:{port}", keys=str(folder / "keys"), beat_s=0.2, lease_s=lease_s
    )
    return made.model_copy(update={"controller": here})


async def attach(port: int, key: Path, *words: str, **environment: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "launch.py"), "attach", f"tcp://127.0.0.1:{port}", "--role", "rollout",
        "--key", str(key), *words, stdout=PIPE, stderr=STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


async def words_of(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode()


def works(controller: Controller, name: str) -> bool:
    return any(w.name == name and w.policy_version >= 0 for w in controller.snapshot().workers)


async def test_an_attached_worker_outlives_its_controller_a_pause_and_then_loses_its_key(tmp_path):
    key, port = make_keys(tmp_path / "keys", "node1", ("rollout",)), free_port()
    assert key is not None
    first = await start_program(PROGRAM, str(tmp_path), str(port), paths=[ROOT, Path(__file__).parent])
    cache = tmp_path / "cache"
    worker = await attach(  # before there is a model
        port, key, "rollout.max_running=3", "model.path=/not/on/this/machine", XDG_CACHE_HOME=str(cache)
    )
    async with asyncio.timeout(LIMIT_S):
        assert (await first.stdout.readline()).decode() == "node1 works\n"
    first.kill()
    await first.wait()

    stage = "came back"
    async with Controller(settings(tmp_path, port)) as controller:
        async for _ in controller.train():
            names = {w.name for w in controller.snapshot().workers}
            if stage == "came back" and works(controller, "node1"):
                worker.send_signal(signal.SIGSTOP)
                stage = "is gone"
            elif stage == "is gone" and "node1" not in names:
                worker.send_signal(signal.SIGCONT)
                stage = "comes back again"
            elif stage == "comes back again" and works(controller, "node1"):
                revoke(tmp_path / "keys", "node1")
                stage = "is revoked"
            elif stage == "is revoked" and "node1" not in names:
                controller.stop("node1 was sent away")
    assert stage == "is revoked"
    said = await words_of(worker)
    assert await worker.wait() == 1
    assert f"as node1, a rollout worker of the run {controller.run_dir}." in said
    assert "Looking for it for 300 s" in said
    assert "Its key was revoked" in said
    assert [path.name for path in cache.rglob("config.json")] == ["config.json"]
    assert not list(cache.rglob("*.safetensors"))
    assert not (tmp_path / "run" / "local.key").exists()
    ends = ("trained", "aborted", "filtered", "lost", "evaluated", "in_flight")
    assert controller.summary["tokens/generated"] == sum(controller.summary[f"tokens/{end}"] for end in ends)
    assert controller.summary["staleness/violations"] == 0
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()


async def drain(run: Path, name: str) -> tuple[int | None, str]:
    words = (sys.executable, str(ROOT / "launch.py"), "drain", str(run), name)
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=STDOUT)
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.costly
async def test_an_operator_drains_workers_one_of_them_the_runs_own(tmp_path):
    key, port = make_keys(tmp_path / "keys", "node1", ("rollout",)), free_port()
    worker = await attach(port, key)
    async with Controller(settings(tmp_path, port, lease_s=600.0)) as controller:
        is_drained = False
        async for _ in controller.train():
            names = {w.name for w in controller.snapshot().workers}
            if works(controller, "node1") and not is_drained:
                is_drained = True
                code, said = await drain(controller.run_dir, "trainer")
                assert code == 2
                assert "these workers can: " in said
                assert (await drain(controller.run_dir, "rollout-0"))[0] == 0
            elif is_drained and "rollout-0" not in names and "node1" in names:
                assert (await drain(controller.run_dir, "node1"))[0] == 0
                assert "asks this worker to hand back" in await words_of(worker)
                assert await worker.wait() == 0
                controller.stop("all were drained")
    assert controller.summary["tokens/lost"] == 0
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.group_size=2"], "not something that a rollout worker can have of its own"),
        (["rollout.threads"], "expected KEY=VALUE"),
    ],
)
async def test_only_what_does_not_touch_the_computation_may_differ(tmp_path, words, said):
    worker = await attach(free_port(), make_keys(tmp_path, "node1"), *words)
    assert said in await words_of(worker)
    assert await worker.wait() == 2


async def test_a_bind_that_others_can_reach_needs_keys(tmp_path):
    here = ControllerSettings(bind="tcp://0.0.0.0:29123")
    open_wide = config(tmp_path).model_copy(update={"controller": here})
    with pytest.raises(ConfigError, match=r"launch\.py keygen keys --role rollout --name node1"):
        async with Controller(open_wide):
            pass
