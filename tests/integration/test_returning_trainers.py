"""Controllers are killed under trainers that were started from outside: those start over under the next."""

import asyncio
import os
import re
import signal
import sys
import threading
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from made_model import TASK
from test_killed_runs import check_whole, run_until
from test_killed_runs import settings as rollout_settings
from test_supervised_runs import config as supervised
from test_supervised_runs import rows
from test_torchrun import QUIET, TORCHRUN, rank
from test_whole_runs import left_behind

from controller import Controller
from controller.config.models import Config, ControllerSettings
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.messages import Close
from protocol.wire.server import Server
from tests.support.ports import free_port
from workers.trainer.checkpoints import read_state

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
ROWS = 64
"""That a supervised run gets which is to be killed, as many as it asks for at once: for 16 of 24 steps."""
LOOKS = "Looking for it for"
TWO_RANKS = (*TORCHRUN[:-1], "--max-restarts=0", "--standalone", "-m", "workers.host")
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_returning_trainers import {settings}, {prompts}
from tests.support.heard_program import say
from controller import Controller

async def main():
    async with Controller({settings}(Path(sys.argv[1])), prompts={prompts}()) as controller:
        async for step in controller.train():
            say(f"step {{step.policy_version}}")

asyncio.run(main())
"""
ROLLOUT = PROGRAM.format(settings="rollout_run", prompts="no_prompts")
SUPERVISED = PROGRAM.format(settings="supervised_run", prompts="some_rows")


def at_its_port(made: Config, folder: Path, *, lease_s: float = 60.0) -> Config:
    """A run at the port that all its lives have."""
    file = folder / "port"
    if not file.exists():
        file.write_text(str(free_port()))
    here = ControllerSettings(bind=f"tcp://127.0.0.1:{file.read_text()}", beat_s=0.5, lease_s=lease_s)
    return made.model_copy(update={"controller": here})


def rollout_run(folder: Path) -> Config:
    return at_its_port(rollout_settings(folder, local=False, streaming=True), folder)


def supervised_run(folder: Path) -> Config:
    engine = f"{TASK.with_name('patient_trainer.py')}:PatientTrainer"
    return at_its_port(supervised(folder, local=False, checkpoint_steps=4, engine=engine), folder)


def brief_run(folder: Path) -> Config:
    """Its trainer soon misses a controller that is gone."""
    return at_its_port(supervised(folder, local=False), folder, lease_s=2.0)


def no_prompts() -> None:
    """Those that the configuration names."""


def some_rows() -> Iterator[dict[str, str]]:
    yield from rows(ROWS)
    threading.Event().wait()


async def start(words: tuple[str, ...], folder: Path) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, "--role", "trainer",
        cwd=folder, env=QUIET, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip


def address(config: Config) -> str:
    return config.controller.bind


async def said_until(process: Process, words: str) -> str:
    """What it says, up to a line with these words."""
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(LIMIT_S):
        while words not in said:
            line = await process.stdout.readline()
            assert line, said
            said += line.decode()
    return said


async def end_of(process: Process) -> tuple[int, str]:
    async with asyncio.timeout(LIMIT_S):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def state_after(run: Path, version: int) -> dict[str, bytes]:
    """Weights, moments and random numbers."""
    saved, state = read_state(run / "checkpoints" / f"step_{version}")
    assert saved == version
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in state.items()}


@pytest.mark.costly
async def test_two_ranks_of_torchrun_begin_anew_and_every_prompt_is_trained_once(tmp_path):
    settings = rollout_run(tmp_path)
    torchrun = await start((*TWO_RANKS, address(settings)), tmp_path)
    await run_until(tmp_path, "step 2", ROLLOUT)  # before there is a checkpoint
    before = [rank(number).pid for number in (0, 1)]
    async with asyncio.timeout(LIMIT_S), Controller(settings) as controller:
        after: list[int] = []
        async for _ in controller.train():
            after = after or [rank(number).pid for number in (0, 1)]
    code, said = await end_of(torchrun)
    assert code == 0, said
    assert said.count(LOOKS) == 1
    assert after == before
    check_whole(tmp_path / "run")
    assert not left_behind()


async def test_a_trainer_finishes_its_checkpoint_and_makes_the_very_weights_again(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    async with Controller(supervised(whole, checkpoint_steps=4)) as controller:
        undisturbed = [step.metrics["loss"] async for step in controller.train()]
    os.mkfifo(killed / "gate")
    settings = supervised_run(killed)
    trainer = await start((str(ROOT / "launch.py"), "attach", address(settings)), killed)
    await run_until(killed, "step 6", SUPERVISED)
    assert not list((killed / "run" / "checkpoints").glob("step_*"))  # 4 is being written
    with ExitStack() as stack:
        async with asyncio.timeout(LIMIT_S), Controller(settings) as controller:
            said = await said_until(trainer, "is finished first")
            stack.enter_context(await asyncio.to_thread((killed / "gate").open, "wb"))
            again = {step.policy_version: step.metrics["loss"] async for step in controller.train()}
    code, rest = await end_of(trainer)
    assert code == 0, rest
    told = re.findall(r"step_4 is written|Looking for it|Going on from .*step_4", said + rest)
    assert [words[:7] for words in told] == ["step_4 ", "Looking", "Going o"], said + rest
    assert again == {version: undisturbed[version - 1] for version in again}
    last = len(undisturbed)
    assert max(again) == last
    assert state_after(killed / "run", last) == state_after(whole / "run", last)
    with Recording(killed / "run") as recording:
        assert replay(recording).is_equal
    assert not left_behind()


# the next test ends two ranks of torchrun, too
@pytest.mark.thorough
async def test_all_ranks_end_when_the_first_is_told_to_leave_while_no_controller_is_there(tmp_path):
    settings = brief_run(tmp_path)
    torchrun = await start((*TWO_RANKS, address(settings)), tmp_path)
    await run_until(tmp_path, "step 6", PROGRAM.format(settings="brief_run", prompts="some_rows"))
    await said_until(torchrun, LOOKS)
    rank(0).send_signal(signal.SIGTERM)
    code, said = await end_of(torchrun)
    assert code == 0, said
    assert not left_behind()


@pytest.mark.costly
async def test_all_ranks_end_when_the_first_finds_the_run_over(tmp_path):
    endpoint = f"tcp://127.0.0.1:{free_port()}"

    def refuse(peer, message, frames):
        server.send(peer, Close("The run is over.", is_fault=False))

    server = Server(endpoint, on_message=refuse, on_fault=lambda peer, reason: None)
    server.start()
    code, said = await end_of(await start((*TWO_RANKS, endpoint), tmp_path))
    server.close()
    assert code == 0, said
    assert "The run is over" in said
