"""Whole runs with real processes, sockets and a real (tiny) model, driven as a user drives them."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from local_workers import below, command_line, local_workers
from made_model import TASK, lay_model

from controller import Controller
from controller.cli.status import in_words
from controller.config.models import Config
from controller.view.exports.tensorboard import NAME
from protocol.errors import RunError

TWO = {"instances": 2}
"""Where it matters that versions differ between instances; each costs as much as the rest of a run."""


def config(run_dir: Path, **sections) -> Config:
    """A run of a few seconds, with its model; `sections` override single keys."""
    lay_model(run_dir / "run")
    tree = {
        "run": {"dir": str(run_dir), "name": "run", "steps": 6},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "reward": {"function": f"{TASK}:reward", "timeout_s": 5.0},
        "rollout": {"instances": 1, "group_size": 4, "max_response_tokens": 12, "max_running": 64},
        "trainer": {"batch_groups": 4, "lr": 0.01},
        "staleness": {"max_staleness": 2, "mu": 0.0},
        "logging": {"console": "quiet"},
    }
    for section, keys in sections.items():
        tree[section] = {**tree.get(section, {}), **keys}
    return Config.model_validate(tree)


async def run_to_the_end(config: Config) -> tuple[list[dict], dict]:
    async with Controller(config) as controller:
        lines = [step.metrics async for step in controller.train()]
    return lines, json.loads((Path(config.run.dir) / "run" / "summary.json").read_text())


def left_behind() -> list[str]:
    """Command lines of workers that belong to this test process and are still there."""
    return [line for line in map(command_line, below()) if "workers." in line]


# synchronous runs are held against a textbook loop by test_sequential_equality.py
@pytest.mark.parametrize(
    "max_staleness", [2, *(pytest.param(bound, marks=pytest.mark.thorough) for bound in (0, 1, 4))]
)
async def test_every_line_keeps_the_bound_and_the_token_ledger_closes(tmp_path, max_staleness):
    settings = config(
        tmp_path,
        staleness={"max_staleness": max_staleness},
        rollout=TWO,
        logging={"trackers": ("tensorboard",)},
    )
    lines, summary = await run_to_the_end(settings)
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert all(line["staleness/max"] <= max_staleness for line in lines)
    assert summary["staleness/violations"] == 0
    assert summary["is_success"]
    spent = sum(summary[f"tokens/{end}"] for end in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
    on_disk = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in on_disk] == list(range(1, 7))
    assert (tmp_path / "run" / "checkpoints" / "step_6" / "config.json").exists()
    assert (tmp_path / "run" / "tensorboard" / NAME).exists()
    assert not left_behind()
    assert not list((tmp_path / "run").glob("*.sock"))


async def test_the_reward_rises(tmp_path):
    lines, _ = await run_to_the_end(config(tmp_path, run={"steps": 25}, trainer={"batch_groups": 8}))
    rewards = [line["reward/mean"] for line in lines]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2, rewards


async def test_two_trainer_ranks_make_the_same_kind_of_run(tmp_path):
    lines, summary = await run_to_the_end(config(tmp_path, run={"steps": 3}, trainer={"ranks": 2}))
    assert len(lines) == 3
    assert summary["is_success"]
    assert not left_behind()


async def test_a_killed_rollout_worker_is_respawned_and_nothing_is_lost(tmp_path):
    async with Controller(config(tmp_path, run={"steps": 8}, rollout=TWO)) as controller:
        steps = 0
        async for step in controller.train():
            steps = step.policy_version
            if steps in (2, 4):
                local_workers(f"rollout-{steps // 4}")[0].kill()
    assert steps == 8
    assert controller.summary["counts"]["workers/respawned"] >= 1
    assert controller.summary["staleness/violations"] == 0
    assert not left_behind()


@pytest.mark.parametrize(
    "function",
    [
        "raising_reward",
        pytest.param("nan_reward", marks=pytest.mark.thorough),
        pytest.param("text_reward", marks=pytest.mark.thorough),
    ],
)
async def test_a_reward_that_never_works_ends_the_run_with_the_cause_and_the_row(tmp_path, function):
    with pytest.raises(RunError) as caught:
        await run_to_the_end(config(tmp_path, reward={"function": f"{TASK}:{function}"}))
    text = str(caught.value)
    assert {"raising_reward": "ZeroDivisionError", "nan_reward": "nan", "text_reward": "str"}[
        function
    ] in text
    assert '"prompt"' in text
    assert not left_behind()


async def test_a_reward_that_hangs_is_killed_and_ends_the_run(tmp_path):
    reward = {"function": f"{TASK}:hanging_reward", "timeout_s": 0.3, "max_consecutive_failures": 4}
    with pytest.raises(RunError, match=r"0\.3 s"):
        await run_to_the_end(config(tmp_path, reward=reward))
    assert not left_behind()


async def test_rows_that_kill_or_hang_the_reward_are_set_aside_by_name_and_replaced(tmp_path):
    rows = [{"prompt": f"{i:02d}:", "answer": {2: "kills", 9: "hangs"}.get(i, "even")} for i in range(60)]
    reward = {"function": f"{TASK}:poisonable_reward", "timeout_s": 1.5, "retries": 2, "processes": 2}
    warnings: list[str] = []
    async with Controller(
        config(tmp_path, reward=reward), prompts=iter(rows), on_warning=warnings.append
    ) as controller:
        steps = [step async for step in controller.train()]
    counts = controller.summary["counts"]
    assert len(steps) == 6
    assert controller.summary["is_success"]
    assert counts["prompts/set_aside"] == 2
    assert counts["reward_failures"] >= 6  # three tries each, and whatever a busy machine made late once
    aside = sorted(text for text in warnings if "is set aside" in text)
    assert len(aside) == 2
    for text, words in zip(
        aside, [("Prompt 2 ", "exit code 9", '"02:"'), ("Prompt 9 ", "1.5 s", '"09:"')], strict=True
    ):
        assert all(word in text for word in words), text
    assert not left_behind()


@pytest.mark.costly
async def test_a_worker_from_another_terminal_joins_and_may_leave_at_any_time(tmp_path):
    async with Controller(config(tmp_path, run={"steps": 5000})) as controller:
        attached = None
        async for step in controller.train():
            names = {w.name: w for w in controller.snapshot().workers}
            if step.policy_version == 1:
                attached = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "workers.host", str(controller.run_dir),
                    "--role", "rollout", "--name", "guest",
                    cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
            elif attached is not None and "guest" in names and names["guest"].policy_version >= 0:
                attached.send_signal(signal.SIGINT)
                assert await attached.wait() == 0
                assert "guest" not in {w.name for w in controller.snapshot().workers}
                assert attached.stdout is not None
                told = (await attached.stdout.read()).decode()
                assert told.startswith(f"Attached to {controller.run_dir} as guest, a rollout worker.")
                controller.stop("the guest came and went")
    assert controller.summary["tokens/lost"] == 0
    assert controller.summary["is_success"]
    logs = {path.stem: path.read_text() for path in (controller.run_dir / "logs").iterdir()}
    assert "Ready: engine torch, 64 responses at a time" in logs["rollout-0"]
    assert "Version 0 is loaded, in " in logs["rollout-0"]
    assert "Ready: 1 processes for " in logs["reward-0"]
    assert "Ready at version 0." in logs["trainer"]


async def test_train_steps_are_made_while_a_checkpoint_is_written(tmp_path):
    os.mkfifo(tmp_path / "gate")
    engine = f"{TASK.with_name('patient_trainer.py')}:PatientTrainer"
    settings = config(tmp_path, run={"steps": 4}, trainer={"engine": engine, "checkpoint_steps": 1})
    checkpoints = tmp_path / "run" / "checkpoints"
    with ExitStack() as stack:
        async with Controller(settings) as controller:
            async for step in controller.train():
                assert not list(checkpoints.glob("step_*"))
                if step.policy_version == 3:
                    stack.enter_context(await asyncio.to_thread((tmp_path / "gate").open, "wb"))
                    break
            async for _ in controller.train():
                pass
    assert [int(path.name.removeprefix("step_")) for path in sorted(checkpoints.glob("step_*"))][-1] == 4
    assert controller.summary["is_success"]


async def test_stopping_saves_a_checkpoint_of_the_last_step(tmp_path):
    async with Controller(config(tmp_path, run={"steps": 500})) as controller:
        async for step in controller.train():
            if step.policy_version == 3:
                controller.stop("enough")
    last = controller.summary["steps"]
    assert 3 <= last < 500
    assert (tmp_path / "run" / "checkpoints" / f"step_{last}" / "model.safetensors").exists()
    assert controller.summary["reason"] == "enough"
    assert controller.summary["ending"] == "stopped"
    told = in_words(controller.run_dir, now=time.time())
    assert told[0].endswith("was stopped: enough")
    assert told[1].startswith(f"Stopped after {last} of 500 train steps at your request.")
    status = json.loads((controller.run_dir / "status.json").read_text())
    assert (status["steps"], status["waits"]) == (last, []), "it is of the end, and not of a second before"


async def test_leaving_the_block_early_leaves_nothing_running(tmp_path):
    async with Controller(config(tmp_path, run={"steps": 500})) as controller:
        async for _ in controller.train():
            break
    assert not left_behind()


async def test_prompts_and_reward_can_be_objects_of_the_program(tmp_path):
    sys.path.insert(0, str(TASK.parent))
    try:
        import even_digits

        prompts = ({"prompt": f"{i:02d}:", "answer": "even"} for i in range(40))
        async with Controller(
            config(tmp_path), prompts=prompts, reward=even_digits.slow_reward
        ) as controller:
            steps = [step async for step in controller.train()]
    finally:
        sys.path.remove(str(TASK.parent))
    assert len(steps) == 6


@pytest.mark.costly
async def test_the_example_of_embedding_runs_as_it_is_printed(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "embedded.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(example), "2", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert [line.split()[0] for line in output.decode().splitlines()[:2]] == ["1", "2"]
