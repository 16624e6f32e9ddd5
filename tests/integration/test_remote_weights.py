"""A run whose instances share no storage with the trainer: versions come over the channel, handed on."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from test_remote_workers import ROOT
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config.models import ControllerSettings, WeightsSettings
from controller.core.commands import Send
from controller.durability.recording import Recording
from controller.durability.replay import replay, turns
from protocol.messages import Pull
from protocol.segments import segment_directory, this_host
from protocol.wire.security import make_keys
from tests.support.ports import free_port


def settings(folder: Path, port: int):
    made = config(folder, run={"steps": 5000}, rollout={"instances": 0, "progress_s": 0.05})
    here = ControllerSettings(bind=f"tcp://127.0.0.1:{port}", keys=str(folder / "keys"))
    return made.model_copy(update={"controller": here, "weights": WeightsSettings(fan_out=1)})


async def attach(folder: Path, port: int, name: str):
    key = make_keys(folder / "keys", name, ("rollout",))
    return await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "launch.py"), "attach", f"tcp://127.0.0.1:{port}", "--role", "rollout",
        "--key", str(key), env={**os.environ, "OMP_NUM_THREADS": "1", "STALEFLOW_HOST": name},
    )  # fmt: skip


@pytest.mark.costly
async def test_two_hosts_are_fed_one_through_the_other_and_nothing_is_left(tmp_path):
    port, sampled = free_port(), {}
    workers = [await attach(tmp_path, port, name) for name in ("node1", "node2")]
    async with Controller(settings(tmp_path, port)) as controller:
        async for _ in controller.train():
            attached = controller.snapshot().workers
            sampled |= {w.name: w.policy_version for w in attached if w.role == "rollout"}
            if len(sampled) == 2 and min(sampled.values()) >= 3:
                controller.stop("both have pulled again and again")
    assert [await worker.wait() for worker in workers] == [0, 0]
    assert controller.summary["counts"].get("pull_failures", 0) == 0
    assert controller.summary["staleness/violations"] == 0
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).is_equal
        steps = list(turns(recording, recording.make_core()))
    pulls = [c.message for turn in steps for c in turn.commands if isinstance(c, Send)]
    sources = [pull.sources for pull in pulls if isinstance(pull, Pull)]
    assert {len(given) for given in sources} == {1, 2}  # the trainer alone, and a host before it
    assert (tmp_path / "run" / "weights.key").stat().st_mode & 0o077 == 0
    for host in ("node1", "node2", this_host()):
        assert not segment_directory(tmp_path / "run", host=host).exists()
    assert not left_behind()
