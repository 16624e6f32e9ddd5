"""How soon a controller is back: `python -m benchmarks.fleet.restart [--instances 1024] [--running 256]`.

A process makes the journal of a fleet in its stride (benchmarks.fleet.alone: real bytes, the production core,
no sockets), with a snapshot as old as one may be, and kills itself with SIGKILL in the middle of it. Another
process opens the run as `launch.py` does. Said: the seconds from before its first import until its first new
event is in the journal, and whether what it knows is what the killed one knew: responses in flight, tokens.
The first `--warm_up` emulated seconds come before the snapshot, `--seconds` after it.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.fleet.alone import Alone
from benchmarks.fleet.rules import ROOT, Rules
from controller.core.core import Core
from controller.durability.release import facts_of
from controller.durability.snapshots import Snapshots

START = """
import time; began = time.perf_counter()
import asyncio, json, os, resource, sys
from benchmarks.fleet.restart import known
from benchmarks.fleet.rules import rows
from controller.config.models import Config
from controller.host.shell import Shell

async def main(run):
    config = Config.model_validate_json(open(run + "/config.json").read())
    shell = Shell(config, prompts=rows(), on_step=print, on_evaluation=print, on_warning=print,
                  on_progress=lambda *_: None)
    await shell.open()
    opened_s = time.perf_counter() - began
    before = known(shell.core)
    for event in shell._first_events:
        shell._post(event)
    shell._is_held = False
    shell._turn()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps({"s": time.perf_counter() - began, "opened_s": opened_s, "cpu_s": time.process_time(),
                      "peak_mb": peak_mb, "epoch": shell.core.state.epoch, "known": before}), flush=True)
    os._exit(0)

asyncio.run(main(sys.argv[1]))
"""


def known(core: Core) -> list[int]:
    """What a restart must bring back: responses, tokens that were reported, events."""
    state = core.state
    running = sum(member.state == "running" for group in state.groups.values() for member in group.members)
    return [running, state.accounts.tokens().generated, state.events]


def make(run: Path, rules: Rules, *, warm_up_s: float, seconds: float) -> None:
    """Write the run of a fleet, say what is known of it, and die."""
    alone = Alone(run.parent, rules, 64)
    (run / "config.json").write_text(alone.config.model_dump_json())
    with alone.store.transaction():
        for name, value in facts_of(alone.config, run_dir=str(run), import_paths=()).items():
            alone.store.put_fact(name, value)
    alone.run(warm_up_s)
    with alone.store.transaction():
        alone.stepper.write_rest()
        snapshots = Snapshots(alone.store, is_compact=False)
        snapshots.take(alone.stepper.core, number=alone.stepper.last, now=alone.now)
    taken = alone.stepper.last
    alone.run(warm_up_s + seconds)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    size_mb = sum(one.stat().st_size for one in run.glob("run.db*")) / 1e6
    after, pause_s = alone.stepper.last - taken, snapshots.pause_s
    told = {"known": known(alone.stepper.core), "after": after, "peak_mb": peak_mb, "size_mb": size_mb,
            "image_s": pause_s}  # fmt: skip
    print(json.dumps(told), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--warm_up", type=float, default=2.0, help="emulated, before the snapshot")
    parser.add_argument("--seconds", type=float, default=1.0, help="emulated, after it")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    Rules.add_to(parser)
    parser.set_defaults(instances=1024, running=256, progress_s="auto")
    options = parser.parse_args()
    rules = Rules.of(options)
    if options.make:
        make(options.make, rules, warm_up_s=options.warm_up, seconds=options.seconds)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder).resolve() / "run"
        words = [f"--warm_up={options.warm_up}", f"--seconds={options.seconds}", *rules.words()]
        began = time.monotonic()
        killed = _say("-m", "benchmarks.fleet.restart", f"--make={run}", *words)
        print(f"made in {time.monotonic() - began:.0f} s: {killed['known'][0]:,} responses in flight, "
              f"{killed['known'][1]:,} tokens, {killed['after']:,} events after the newest snapshot "
              f"(made in {killed['image_s']:.1f} s), run.db {killed['size_mb']:.0f} MB, "
              f"{killed['peak_mb']:.0f} MB with its fleet", flush=True)  # fmt: skip
        found = _say("-c", START, str(run))
        same = "the same is known" if found["known"] == killed["known"] else f"KNOWN is {found['known']}"
        print(f"killed by SIGKILL; first new event after {found['s']:.1f} s ({found['cpu_s']:.1f} s of CPU, "
              f"{found['opened_s']:.1f} s to open), {found['peak_mb']:.0f} MB; {same}")  # fmt: skip


def _say(*words: str) -> dict:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment,
                          cwd=ROOT, check=False)  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{words[1]} ended with code {done.returncode}: {done.stdout[-500:]}")
    return json.loads(lines[-1])


if __name__ == "__main__":
    main()
