"""Ten thousand steps of one run with everything on, while everything in it is killed and stopped.

`python -m benchmarks.long_run FOLDER [--steps N] [--minutes M]`: a real controller process with its journal
and its sockets, workers that cost nothing (long_run_worker), and a dice that kills and stops all of them.
After M minutes the controller is killed once more, and the same command goes on. At the end it says what was
done to the run, what it has lost, and how its memory and its journal have grown; it exits with 1 if a promise
was broken.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks.long_run_rules import LEASE_S, REMOTE, ROOT, config
from controller import Controller
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host import shell
from controller.host.supervisor import Supervisor

HOST = (sys.executable, "-m", "benchmarks.long_run_worker")
STRIKES = {"controller": 40, "trainer": 60, "rollout": 200, "reward": 80, REMOTE: 20, "stop": 30, "freeze": 6}
"""Of 10,000 steps: kills by role; workers that are stopped, and controllers, for up to twice the lease."""
PER_STEPS = 10_000
SAMPLE_STEPS = 100


@dataclass
class Progress:
    """What outlives this program."""

    seconds: float = 0.0
    lives: int = 0  # of the controller
    done: dict[str, int] = field(default_factory=dict)
    memory: list[tuple[int, float]] = field(default_factory=list)  # step, MB of the controller

    @classmethod
    def read(cls, file: Path) -> "Progress":
        """From an earlier part of the run, if there was one."""
        return cls(**json.loads(file.read_text())) if file.exists() else cls()


async def control(folder: Path, *, steps: int, spare_groups: int) -> None:
    """The controller process."""
    shell.Supervisor = partial(Supervisor, host=HOST)  # type: ignore[misc]
    settings = config(folder, steps=steps, spare_groups=spare_groups)
    async with Controller(settings, on_warning=lambda text: print("warning", text[:300])) as controller:
        print("open", flush=True)
        async for step in controller.train():
            print("step", step.policy_version, flush=True)
    core = controller._shell.core
    there = [group for group in core.state.groups.values() if not group.is_evaluation]
    ends = {key: n for key, n in core.state.accounts.counts.items() if key.startswith("groups/")}
    account = {"read": core.scoring.read_until, "there": len(there), **ends}
    (folder / "account.json").write_text(json.dumps(account))


class LongRun:
    """Strikes the processes of one run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.dice = folder, options, random.Random(os.urandom(8))
        self.progress = Progress.read(folder / "progress.json")
        self.done, self.step, self.log = Counter(self.progress.done), 0, folder / "controller.log"
        self.began = time.monotonic() - self.progress.seconds
        self.until = time.monotonic() + 60 * options.minutes

    async def run(self) -> bool:
        """Whether the run has come to its end."""
        remote: asyncio.subprocess.Process | None = None
        try:
            while time.monotonic() < self.until:
                if remote is None or remote.returncode is not None:
                    remote = await self._start(
                        *HOST, str(self.folder / "run"), "--role", "rollout", "--name", REMOTE
                    )
                if await self._one_life(remote):
                    return True
        finally:
            if remote is not None and remote.returncode is None:
                remote.kill()
                await remote.wait()
            self._save()
        return False

    async def _start(self, *command: str, **pipes: int) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stderr=log, **{"stdout": log, **pipes}
            )

    async def _one_life(self, remote: asyncio.subprocess.Process) -> bool:
        """One life of the controller; whether it came to the end of the run."""
        self.progress.lives += 1
        process = await self._start(
            sys.executable, "-m", "benchmarks.long_run", str(self.folder), "--control",
            f"--steps={self.options.steps}", f"--spare_groups={self.options.spare_groups}",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        controller = psutil.Process(process.pid)
        async for line in process.stdout:
            if not line.startswith(b"step") or not line.endswith(b"\n"):  # else cut off by a kill
                with self.log.open("ab") as log:
                    log.write(line)
                continue
            self.step = int(line.split()[1])
            if self.step % SAMPLE_STEPS == 0:
                self._sample(controller)
            if time.monotonic() > self.until:
                process.kill()
            elif self.step < self.options.steps:
                await self._strike(controller, remote)
        code = await process.wait()
        if code > 0:
            raise SystemExit(
                f"The controller has ended with code {code} at step {self.step}; see {self.log}."
            )
        return code == 0

    async def _strike(self, controller: psutil.Process, remote: asyncio.subprocess.Process) -> None:
        for what, count in STRIKES.items():
            if self.dice.random() >= self.options.strikes * count / PER_STEPS:
                continue
            await asyncio.sleep(self.dice.uniform(0.0, 0.05))
            victim = self._victim(what, controller, remote)
            if victim is not None:
                self.done[what] += 1
                self._hit(what, victim)

    def _victim(
        self, what: str, controller: psutil.Process, remote: asyncio.subprocess.Process
    ) -> psutil.Process | None:
        if what in ("controller", "freeze"):
            return controller
        with suppress(psutil.Error):
            if what == REMOTE:
                return psutil.Process(remote.pid) if remote.returncode is None else None
            workers = [
                child for child in controller.children(recursive=True)
                if {"--role"} | ({what} - {"stop"}) <= set(" ".join(child.cmdline()).split())
            ]  # fmt: skip
            return self.dice.choice(workers) if workers else None
        return None

    def _hit(self, what: str, victim: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            if what not in ("stop", "freeze"):
                victim.kill()
                return
            victim.suspend()
            pause_s = self.dice.uniform(0.1, 2 * LEASE_S)
            asyncio.get_running_loop().call_later(pause_s, _go_on, victim)

    def _sample(self, controller: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            megabytes = controller.memory_info().rss / 1e6
            self.progress.memory.append((self.step, megabytes))
            print(f"step {self.step}: {time.monotonic() - self.began:.0f} s, {megabytes:.0f} MB", flush=True)
        self._save()

    def _save(self) -> None:
        self.progress.seconds, self.progress.done = time.monotonic() - self.began, dict(self.done)
        (self.folder / "progress.json").write_text(json.dumps(asdict(self.progress)))


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def broken(folder: Path, *, steps: int) -> list[str]:
    """Promises that were not kept, by the trainer's own list and the files of the run."""
    batches = dict(json.loads(line) for line in (folder / "run/disk/batches.jsonl").read_text().splitlines())
    groups = [group for batch in batches.values() for group in batch]
    lines = [json.loads(line)["step"] for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "run/summary.json").read_text())
    ends = ("trained", "aborted", "filtered", "lost", "evaluated", "in_flight")
    spent = sum(summary.get(f"tokens/{end}", 0) for end in ends)
    account = json.loads((folder / "account.json").read_text())
    set_aside = summary["counts"].get("prompts/set_aside", 0)
    given_up = account.get("groups/filtered", 0) + account.get("groups/aborted", 0) + set_aside
    lost = account["read"] - account["there"] - len(groups) - given_up
    promises = {
        f"the run ends well: {summary['reason']}": summary["is_success"],
        "a batch for every step": sorted(batches) == list(range(steps)),
        f"no row is trained twice ({len(groups) - len(set(groups))})": len(groups) == len(set(groups)),
        f"no row is lost ({lost}; {set_aside} set aside; {account})": lost == 0,
        "one line for every step": lines == list(range(1, steps + 1)),
        f"no violation ({summary['staleness/violations']})": summary["staleness/violations"] == 0,
        f"the token ledger closes ({summary['tokens/generated']}, {spent})": summary["tokens/generated"]
        == spent,
        "replay derives every command again": is_replayed(folder / "run"),
    }
    return [text for text, is_kept in promises.items() if not is_kept]


def is_replayed(run: Path) -> bool:
    """Whether the journal gives the commands that were carried out, over all lives of the controller."""
    with Recording(run) as recording:
        return replay(recording).is_equal


def report(folder: Path, progress: Progress, *, steps: int) -> int:
    """Print the figures; 1 if a promise was broken."""
    size = sum(file.stat().st_size for file in (folder / "run").glob("run.db*")) / 1e6
    memory, summary = progress.memory, json.loads((folder / "run/summary.json").read_text())
    at = [memory[0], memory[len(memory) // 2], memory[-1]]
    strikes = ", ".join(f"{n} {what}" for what, n in sorted(progress.done.items()))
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"{steps:,} steps in {progress.seconds:.0f} s; {progress.lives} lives of the controller; {strikes}")
    print("memory of the controller: " + ", ".join(f"{mb:.0f} MB at step {step}" for step, mb in at))
    print(f"journal: {size:.0f} MB at the end")
    print("counts: " + ", ".join(f"{n:,} {what}" for what, n in sorted(summary["counts"].items())))
    found = broken(folder, steps=steps)
    print(
        "broken: "
        + ("; ".join(found) if found else "nothing (no row twice or lost, no violation, ledger closed)")
    )
    return 1 if found else 0


def main() -> int:
    """Run, or go on; then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=PER_STEPS)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long; call again to go on")
    parser.add_argument("--spare_groups", type=int, default=0, help="and no training in parts")
    parser.add_argument("--strikes", type=float, default=1.0, help="times as many of them")
    parser.add_argument("--control", action="store_true", help="be the controller; used by this program")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.control:
        asyncio.run(control(options.folder, steps=options.steps, spare_groups=options.spare_groups))
        return 0
    run = LongRun(options.folder, options)
    if not asyncio.run(run.run()):
        print(f"Stopped at step {run.step} of {options.steps}; the same command goes on.")
        return 0
    return report(options.folder, run.progress, steps=options.steps)


if __name__ == "__main__":
    sys.exit(main())
