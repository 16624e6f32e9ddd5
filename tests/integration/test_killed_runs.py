"""Controllers and trainers of real runs are killed, and nothing is lost: the same command goes on."""

import asyncio
import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from local_workers import local_workers
from test_whole_runs import config, left_behind

from controller import Controller
from controller.core.commands import ReportStep, Send
from controller.durability.recording import Recording
from controller.durability.release import RELEASES, here
from controller.durability.replay import replay, turns
from protocol.errors import ConfigError
from protocol.messages import Train
from tests.support.finished_runs import checked_end
from tests.support.heard_program import heard
from tests.support.prepared_program import start_program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STEPS, GROUPS = 9, 4
LIMIT_S = 300
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_killed_runs import settings
from tests.support.heard_program import say
from controller import Controller

async def main():
    async with Controller(settings(Path(sys.argv[1])), on_progress=lambda _, text: say(text)) as controller:
        async for step in controller.train():
            say(f"step {step.policy_version}")

asyncio.run(main())
"""


def settings(run_dir: Path, *, steps: int = STEPS, **trainer):
    return config(
        run_dir,
        run={"steps": steps},
        trainer={"checkpoint_steps": 4, **trainer},
        rollout={"instances": 1, "progress_s": 0.05},
    )


async def run_until(run_dir: Path, words: str, program: str = PROGRAM) -> None:
    """The program in a process of its own; SIGKILL in the moment in which it says these words."""
    process = await start_program(program, str(run_dir), paths=[ROOT, HERE])
    await heard(process, words)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, workers, LIMIT_S)
    assert not alive


def trained(run: Path) -> dict[int, set[int]]:
    """train_version -> the groups that every Train of it had."""
    batches: dict[int, set[int]] = {}
    with Recording(run) as recording:
        for _, commands in turns(recording, recording.make_core()):
            for command in commands:
                if isinstance(command, Send) and isinstance(command.message, Train):
                    train = command.message
                    groups = {item.group for item in train.items}
                    assert batches.setdefault(train.train_version, groups) == groups
    return batches


def check_whole(run: Path, *, steps: int = STEPS) -> None:
    batches = trained(run)
    assert list(batches) == list(range(steps))
    assert all(len(groups) == GROUPS for groups in batches.values())
    assert len(set().union(*batches.values())) == GROUPS * steps
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    times = [line["time_s"] for line in lines]
    assert times == sorted(times)
    _, verdict = checked_end(run)
    assert verdict.commands["ReportStep"] == steps
    assert (run / "checkpoints" / f"step_{steps}").exists()


async def test_a_controller_that_is_killed_three_times_makes_the_whole_run(tmp_path):
    for words in ("trainer is ready", "step 3", "step 6"):
        await run_until(tmp_path, words)
    async with Controller(settings(tmp_path)) as controller:
        steps = [step.policy_version async for step in controller.train()]
    assert steps[0] in (6, 7, 8)
    assert steps == list(range(steps[0], STEPS + 1))
    assert not list(tmp_path.glob("run.*"))  # nothing was set aside
    check_whole(tmp_path / "run")
    with Recording(tmp_path / "run") as recording:
        assert replay(recording).epochs == 4


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
async def test_a_killed_trainer_is_started_again_and_fed_the_same_batches(tmp_path, ranks):
    async with Controller(settings(tmp_path, ranks=ranks)) as controller:
        async for step in controller.train():
            if step.policy_version in (2, 6):
                trainers = local_workers("trainer")
                assert len(trainers) == ranks
                trainers[-1].send_signal(signal.SIGKILL)
    assert controller.summary["counts"]["workers/respawned"] == 2
    assert controller.summary["counts"]["trainer/steps_again"] >= 2
    assert not left_behind()
    check_whole(tmp_path / "run")
    assert not (tmp_path / "run" / "weights" / "v1.safetensors").exists()


async def test_a_run_that_was_stopped_goes_on_to_more_steps_and_then_is_set_aside(tmp_path):
    async with Controller(settings(tmp_path)) as controller:
        async for step in controller.train():
            if step.policy_version == 2:
                controller.stop("enough")
    with closing(sqlite3.connect(tmp_path / "run" / "run.db", isolation_level=None)) as db:
        db.execute("UPDATE facts SET value = ? WHERE name = ?", ('[[1, {"sources": "other"}]]', RELEASES))
    told: list[str] = []
    for steps in (5, 7):
        going_on = settings(tmp_path, steps=steps, ranks=1)
        async with Controller(going_on, on_warning=told.append) as controller:
            last = [step.policy_version async for step in controller.train()][-1]
        assert last == steps
        check_whole(tmp_path / "run", steps=steps)
    warned = [text for text in told if "made by another release" in text]
    assert len(warned) == 1, "only the first goes on with a run of another"
    with Recording(tmp_path / "run") as recording:
        first, second = recording.parts
    assert (first.made, second.made) == ({"sources": "other"}, here())
    warnings: list[str] = []
    async with Controller(settings(tmp_path, steps=1), on_warning=warnings.append) as controller:
        assert [step.policy_version async for step in controller.train()] == [1]
    assert "was finished after 7 train steps" in warnings[0]
    check_whole(tmp_path / "run.1", steps=7)


async def test_a_run_does_not_go_on_with_other_promises_or_other_prompts(tmp_path):
    async with Controller(settings(tmp_path)) as controller:
        async for _ in controller.train():
            break
    with pytest.raises(ConfigError, match=r"trainer\.lr: 0\.01 there, 0\.5 now"):
        async with Controller(settings(tmp_path, lr=0.5)):
            pass
    others = [{"prompt": "11:", "answer": "even"}] * 1000
    with pytest.raises(ConfigError, match=r"Prompt \d+ was .* and is now .*run\.resume=never"):
        async with Controller(settings(tmp_path), prompts=others):
            pass
    with Recording(tmp_path / "run") as recording:
        assert [
            c
            for _, commands in turns(recording, recording.make_core())
            for c in commands
            if isinstance(c, ReportStep)
        ]
