"""A real run whose processes are killed and stopped at random moments trains each prompt once, and learns."""

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_workers import command_line
from made_model import TASK
from test_killed_runs import ROOT, trained
from test_whole_runs import config

from tests.support.finished_runs import checked_end
from tests.support.prepared_program import PreparedProcess, start_program

STEPS, GROUPS = 20, 16
STRUCK_SHARE = 0.65
"""The plan is to be through after so much of the steps."""
AHEAD = 5
"""Batches whose rows are given out beyond the step that has been dealt with: the run cannot outpace its
strikes. A read that stops for want of rows holds back at most 4 of them (ENCODE_AT_ONCE)."""
STRIKES = {"controller": 3, "rollout": 13, "reward": 9, "trainer": 5, "stop": 5}
"""30 SIGKILLs, and 5 SIGSTOPs of workers that go on up to twice the lease later."""
LEASE_S = 3.0
CHAOS = Path(__file__).parent
PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_chaos import rows, settings
from controller import Controller

async def main():
    how = {"ranks": int(sys.argv[2]), "keep_kv": sys.argv[3] == "True"}
    async with Controller(settings(Path(sys.argv[1]), **how), prompts=rows()) as controller:
        print("open", flush=True)
        async for step in controller.train():
            print("step", step.policy_version, flush=True)

asyncio.run(main())
"""


def settings(run_dir: Path, *, ranks: int, keep_kv: bool):
    return config(
        run_dir,
        run={"steps": STEPS},
        trainer={"batch_groups": GROUPS, "checkpoint_steps": 3, "ranks": ranks},
        staleness={"keep_kv": keep_kv},
        rollout={"instances": 2, "progress_s": 0.05},
        controller={"respawns": 1000, "lease_s": LEASE_S, "beat_s": 0.5},
    )


def rows(count: int = STEPS * GROUPS) -> Iterator[dict[str, str]]:
    """As many prompts as are trained, so that a lost one ends the run too early; stdin says how many may be
    read."""
    sys.path.insert(0, str(TASK.parent))
    import even_digits

    allowed = 0
    for number, row in enumerate(islice(even_digits.prompts(seed=0), count)):
        while number >= allowed:
            allowed = int(sys.stdin.readline())
        yield row


class Chaos:
    """Strikes the processes of one run, by a plan drawn from the seed; the controller early in it."""

    def __init__(
        self, seed: int, run_dir: Path, *how: str, program: str = PROGRAM, steps: int = STEPS,
        groups: int = GROUPS, strikes: Mapping[str, int] = STRIKES,
    ) -> None:  # fmt: skip
        """`how`: more words of the program's command line."""
        self.dice, self.run_dir = random.Random(seed), run_dir
        self.how, self.program, self.steps, self.groups = how, program, steps, groups
        self.plan = [what for what, count in strikes.items() for _ in range(count) if what != "controller"]
        self.dice.shuffle(self.plan)
        early = range(max(len(self.plan) // 3, strikes["controller"]))
        for place in self.dice.sample(early, strikes["controller"]):
            self.plan.insert(place, "controller")
        self.strikes = sum(strikes.values())
        self.done: Counter[str] = Counter()
        self.killed: dict[str, list[int]] = {}
        """Process ids, by what they were."""
        self.step = 0
        """The newest step that was made."""

    async def run(self) -> None:
        """Start the controller again and again, until it has ended by itself."""
        while await self._one_life():
            pass

    async def _one_life(self) -> bool:
        """Whether the controller was killed."""
        process = await start_program(
            self.program, str(self.run_dir), *self.how, paths=[ROOT, CHAOS.parent, CHAOS]
        )
        process.stdin.write(self._allowed)
        async for line in process.stdout:
            self._hear(line)
            has_stepped = line.startswith(b"step")
            while self._is_due and (has_stepped or set(self.plan) != {"controller"}):
                await self._a_moment(process)
                if self._strike(psutil.Process(process.pid), has_stepped=has_stepped) == "controller":
                    for last in (await process.stdout.read()).splitlines():
                        self._hear(last)
                    await process.wait()
                    return True
            process.stdin.write(self._allowed)
        assert await process.wait() == 0
        return False

    def _hear(self, line: bytes) -> None:
        if line.startswith(b"step"):
            self.step = int(line.split()[1])

    @property
    def _allowed(self) -> bytes:
        """How many rows may be read, as `rows` expects it."""
        count = self.steps * self.groups
        return b"%d\n" % min((self.step + AHEAD) * self.groups, count - bool(self.plan))

    @property
    def _is_due(self) -> bool:
        """Whether less of the plan was done than should be after so many steps."""
        left = max(0.0, 1 - self.step / (STRUCK_SHARE * self.steps)) * self.strikes
        return len(self.plan) > round(left)

    async def _a_moment(self, process: PreparedProcess) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self.dice.uniform(0.0, 0.6))

    def _strike(self, controller: psutil.Process, *, has_stepped: bool) -> str:
        """The next strike of the plan whose victim is there, or ""; controllers that have made a step."""
        workers: dict[str, list[psutil.Process]] = {}
        for child in controller.children(recursive=True):
            with suppress(psutil.Error):
                words = command_line(child).split()
                if "--role" in words:
                    workers.setdefault(words[words.index("--role") + 1], []).append(child)
        workers["stop"] = [*workers.get("rollout", []), *workers.get("reward", [])]
        workers["controller"] = [controller] if has_stepped else []
        workers["child"] = [child for agent in workers.get("agent", []) for child in _episodes_of(agent)]
        for i, what in enumerate(self.plan):
            if not workers.get(what):
                continue
            victim = self.dice.choice(workers[what])
            del self.plan[i]
            self.done[what] += 1
            self.killed.setdefault(what, []).append(victim.pid)
            with suppress(psutil.NoSuchProcess):
                if what != "stop":
                    victim.kill()
                    return what
                victim.suspend()
                pause_s = self.dice.uniform(0.2, 2 * LEASE_S)
                asyncio.get_running_loop().call_later(pause_s, _go_on, victim)
            return what
        return ""


def _episodes_of(agent: psutil.Process) -> list[psutil.Process]:
    """The processes of an agent worker that run the user's code."""
    with suppress(psutil.NoSuchProcess):
        return [child for child in agent.children() if "workers.agent.process" in command_line(child)]
    return []


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # its lease had ended, and it was killed
        process.send_signal(signal.SIGCONT)


def whole(run: Path, *, steps: int, groups: int, epochs: int) -> dict[str, Any]:
    """The summary of a run that trained each prompt once and replays equal. Raises: AssertionError."""
    batches = trained(run)
    assert list(batches) == list(range(steps))
    assert sorted(group for batch in batches.values() for group in batch) == list(range(steps * groups))
    summary, verdict = checked_end(run)
    assert verdict.epochs == epochs
    return summary


@pytest.mark.parametrize(
    ("seed", "ranks", "keep_kv"),
    [
        pytest.param(0, 1, False, marks=pytest.mark.costly),
        pytest.param(1, 1, False, marks=pytest.mark.thorough),
        pytest.param(2, 1, True, marks=pytest.mark.thorough),
        pytest.param(3, 2, False, marks=pytest.mark.thorough),
        pytest.param(4, 2, True, marks=pytest.mark.thorough),
    ],
)
async def test_a_run_under_thirty_kills_and_five_pauses_is_whole_and_learns(tmp_path, seed, ranks, keep_kv):
    chaos = Chaos(seed, tmp_path, str(ranks), str(keep_kv))
    await chaos.run()
    assert dict(chaos.done) == STRIKES
    run = tmp_path / "run"
    whole(run, steps=STEPS, groups=GROUPS, epochs=1 + STRIKES["controller"])
    rewards = [json.loads(line)["reward/mean"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rewards) == STEPS
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.05, rewards
