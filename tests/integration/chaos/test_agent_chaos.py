"""A real run of agents whose processes are killed at random moments: nothing is sampled or trained twice."""

from pathlib import Path

import pytest
from test_chaos import Chaos, whole
from test_whole_runs import config

STEPS, GROUPS = 8, 16
TASKS = Path(__file__).parents[2] / "tasks"
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_agent_chaos import GROUPS, settings
from test_chaos import rows
from controller import Controller

async def main():
    steps = int(sys.argv[2])
    made = settings(Path(sys.argv[1]), steps, "FUNCTION")
    async with Controller(made, prompts=rows(steps * GROUPS)) as controller:
        print("open", flush=True)
        async for step in controller.train():
            print("step", step.policy_version, flush=True)

asyncio.run(main())
"""


def settings(run_dir: Path, steps: int, function: str):
    return config(
        run_dir,
        run={"steps": steps},
        agent={
            "function": f"{TASKS / function}:episode", "workers": 2, "concurrency": 32, "retries": 1000,
            "max_consecutive_failures": 1000,
        },
        reward={"function": ""},
        trainer={"batch_groups": GROUPS, "checkpoint_steps": 3},
        rollout={
            "instances": 2, "progress_s": 0.05, "engine": "auditing_engine:make", "max_prompt_tokens": 8,
            "max_response_tokens": 24,
        },
        controller={"respawns": 1000, "lease_s": 5.0, "beat_s": 0.5},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "steps", "strikes"),
    [
        pytest.param(0, STEPS, {"agent": 1, "child": 1, "controller": 1}, marks=pytest.mark.thorough),
        pytest.param(
            1, 20, {"agent": 8, "child": 4, "rollout": 4, "controller": 2, "trainer": 2},
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
async def test_killed_agents_and_controllers_cost_no_token(tmp_path, monkeypatch, seed, steps, strikes):
    log = tmp_path / "sampled"
    monkeypatch.setenv("SAMPLED", str(log))
    chaos = Chaos(
        seed,
        tmp_path,
        str(steps),
        program=PROGRAM.replace("FUNCTION", "even_turns.py"),
        steps=steps,
        groups=GROUPS,
        strikes=strikes,
    )
    await chaos.run()
    assert dict(chaos.done) == strikes
    summary = whole(tmp_path / "run", steps=steps, groups=GROUPS, epochs=1 + strikes["controller"])
    assert summary["counts"].get("episodes/diverged", 0) == 0
    assert summary["counts"]["episodes/replayed_turns"] > 0
    twice, again = _sampled_again(log, killed=chaos.killed.get("rollout", []))
    assert not twice
    assert summary["tokens/lost"] <= again  # of a killed rollout worker, what it told when it was given up


@pytest.mark.thorough
async def test_an_environment_that_was_saved_goes_on_over_the_death_of_agents_and_controllers(
    tmp_path, monkeypatch
):
    log, lives = tmp_path / "sampled", tmp_path / "lives"
    monkeypatch.setenv("SAMPLED", str(log))
    monkeypatch.setenv("LIVES", str(lives))
    program, strikes = PROGRAM.replace("FUNCTION", "even_saved.py"), {"agent": 2, "child": 2, "controller": 2}
    chaos = Chaos(3, tmp_path, str(STEPS), program=program, steps=STEPS, groups=GROUPS, strikes=strikes)
    await chaos.run()
    assert dict(chaos.done) == strikes
    summary = whole(tmp_path / "run", steps=STEPS, groups=GROUPS, epochs=1 + strikes["controller"])
    assert summary["counts"]["episodes/restored"] > 0
    assert summary["counts"].get("episodes/diverged", 0) == 0, "what it answers is never asked of it twice"
    assert not _sampled_again(log, killed=[])[0]
    went_on = sum(line.startswith("goes on") for line in lives.read_text().splitlines())
    assert went_on > 0


def _sampled_again(log: Path, *, killed: list[int]) -> tuple[list[tuple[str, ...]], int]:
    """Tokens that live workers have sampled twice, and how many of a killed one others have sampled again."""
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) > 500
    once: set[tuple[str, ...]] = set()
    twice = []
    for pid, *token in lines:
        if int(pid) not in killed:
            twice += [tuple(token)] if tuple(token) in once else []
            once.add(tuple(token))
    return twice, sum(int(pid) in killed and tuple(token) in once for pid, *token in lines)
