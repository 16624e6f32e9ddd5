"""Liars beside real workers, and real workers that lie: closed by name, and nothing honest is lost."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import pytest
from lying_worker import LIES as OWN
from scripted_peers import Peer
from test_whole_runs import config, left_behind

from controller import Controller
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay
from protocol.errors import RunError
from protocol.segments import this_host
from tests.support.lies import LIES
from tests.support.lying import Liar
from tests.support.scripted import Scripted, ScriptedReward, ScriptedRollout

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
STEPS = 4
MOST = 12  # tokens of a response
BESIDE = {
    "rollout": ("a token as large as numbers get", "a hundred thousand tokens", "tokens from far behind"),
    "reward": ("gives too few rewards", "gives the largest rewards", "encodes examples"),
}


def settings(folder: Path, **sections) -> Config:
    made = config(folder, run={"steps": STEPS}, **{"rollout": {"instances": 1}, **sections})
    return made.model_copy(update={"controller": made.controller.model_copy(update={"replace_s": 5.0})})


def liar(role: str, name: str) -> Liar:
    """A scripted worker of this machine that knows nothing of the model, and tells this lie."""
    worker: Scripted = ScriptedReward("") if role == "reward" else ScriptedRollout("", most=MOST)
    worker.name, worker.host, worker.is_strict = f"liar {role} {name}"[:60], this_host(), False
    return Liar(worker, next(lie for lie in LIES if (lie.role, lie.name) == (role, name)))


def check_the_end(folder: Path, summary: dict) -> None:
    assert summary["is_success"], summary["reason"]
    assert summary["staleness/violations"] == 0
    spent = sum(summary[f"tokens/{end}"] for end in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
    with Recording(folder / "run") as recording:
        assert replay(recording).is_equal
        assert not recording.skipped
    assert not left_behind()


async def test_a_real_trainer_and_a_real_reward_worker_go_on_beside_six_liars(tmp_path):
    said: list[str] = []
    peers: list[Peer] = []
    endless = settings(tmp_path)
    endless = endless.model_copy(update={"run": endless.run.model_copy(update={"steps": 10_000})})
    controller = Controller(endless, on_warning=said.append)
    try:
        async with asyncio.timeout(LIMIT_S), controller:
            steps = controller.train()
            await anext(steps)
            peers += [Peer(controller.run_dir, liar(role, lie)) for role in BESIDE for lie in BESIDE[role]]
            async for _ in steps:
                if all(peer.closed.is_set() for peer in peers):
                    controller.stop("all liars are gone")
    finally:
        for peer in peers:
            peer.leave()
    names = [peer.worker.name for peer in peers]
    assert [name for name in names if not any(f"{name} was closed: " in text for text in said)] == []
    check_the_end(tmp_path, controller.summary)


async def start(run: Path, role: str, name: str, lie: str = "") -> Process:
    """A real worker, attached by hand."""
    program = (
        (str(ROOT / "tests" / "integration" / "lying_worker.py"), lie) if lie else ("-m", "workers.host")
    )
    return await asyncio.create_subprocess_exec(
        sys.executable, *program, str(run), "--role", role, "--name", name, f"--parent={os.getpid()}",
        cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("lie", OWN)
async def test_a_real_worker_that_lies_ends_the_run_which_honest_ones_take_up(tmp_path, lie):
    role, said = lie.partition(":")[0], list[str]()
    alone = {
        "rollout": {"rollout": {"instances": 0}},
        "reward": {"reward": {"workers": 0}},
        "trainer": {"trainer": {"local": False}},
    }[role]
    first = settings(tmp_path, **alone)
    with pytest.raises(RunError, match="liar was closed: "):
        await play_alone(first, role, lie, said)
    assert any("liar was closed: " in text for text in said)
    async with asyncio.timeout(LIMIT_S), Controller(first, on_warning=said.append) as second:
        honest = await start(second.run_dir, role, "honest")
        async for _ in second.train():
            pass
    async with asyncio.timeout(LIMIT_S):
        assert await honest.wait() == 0
    check_the_end(tmp_path, second.summary)
    assert [line["step"] for line in lines_of(tmp_path)] == list(range(1, STEPS + 1))


async def play_alone(settings: Config, role: str, lie: str, said: list[str]) -> None:
    """A life in which the liar is the only worker of its role. Raises: RunError."""
    async with asyncio.timeout(LIMIT_S), Controller(settings, on_warning=said.append) as controller:
        process = await start(controller.run_dir, role, "liar", lie)
        try:
            async for _ in controller.train():
                pass
        finally:
            async with asyncio.timeout(LIMIT_S):
                await process.wait()


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
