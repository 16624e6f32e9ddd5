"""What deciding costs: time inside `Core.step`, its worst case, and where it goes; equal decisions.

Invariant: only the core is timed, not the simulated workers, in CPU time of one core of this machine, so
that other processes do not count, and with garbage collected as often as in a run. What ends the run, and
calls all off that is under way, does not count as its worst step.
"""

import cProfile
import os
import pstats
import subprocess
import sys
import time
from typing import Any

from benchmarks.coordination.cells import ROOT, Runner
from benchmarks.coordination.parts import Table
from controller.config.models import Config
from controller.core.commands import Command, Send
from controller.core.core import Core
from controller.core.events import Event, Received
from controller.durability.image.classes import is_compiled
from controller.host.collector import Collector, rare_collections
from controller.simulation import Faults, Simulation
from protocol.messages import Route

INSTANCES, TRAJECTORIES, GROUP = (16, 128, 1024), 64, 16
STEPS = {16: 12, 128: 5, 1024: 3}
LIMITS = {"us": 60.0, "worst_ms": 10.0, "route_us": 30.0}
TOP = 12
IS_COMPILED = is_compiled(Core)
MANY = 16  # routes of one step: of a compiled core, all the time of such steps counts as theirs


class Timed:
    """Decides as the core of a simulation does: seconds, calls and worst step by kind of event."""

    def __init__(self, simulation: Simulation, profile: cProfile.Profile | None = None) -> None:
        self.simulation, self._step, self._profile = simulation, simulation.core.step, profile
        self.total_s, self.worst_s, self.worst_of, self.steps_s = 0.0, 0.0, "", []
        self.collector, self.between_s = Collector(), 0.0
        self.many_s, self.many = 0.0, 0
        self.dispatch_s, self.routes, self._dispatch = 0.0, 0, simulation.core.dispatch.run
        if profile is None and not IS_COMPILED:
            simulation.core.dispatch.run = self._dispatched
        simulation.decide = self.step

    def step(self, now: float, event: Event) -> list[Command]:
        """What `Core.step` does, timed."""
        if self._profile:
            return self._profile.runcall(self._step, now, event)
        began = time.thread_time()
        commands = self._step(now, event)
        spent_s = time.thread_time() - began
        self.total_s += spent_s
        routes = sum(isinstance(one, Send) and isinstance(one.message, Route) for one in commands)
        self.routes += routes
        if routes >= MANY:
            self.many_s, self.many = self.many_s + spent_s, self.many + routes
        goes_on = self.simulation.core.state.ending is None
        if self.steps_s and spent_s > self.worst_s and goes_on:
            inner = event.message if isinstance(event, Received) else event
            self.worst_s, self.worst_of = spent_s, type(inner).__name__
        self.steps_s.append(spent_s)
        if goes_on and len(self.steps_s) > 1:
            self._collect(1 + len(commands))
        return commands

    def _dispatched(self) -> None:
        """All that it takes to route: views, choices, and the looks that find nothing to route."""
        began = time.thread_time()
        self._dispatch()
        self.dispatch_s += time.thread_time() - began

    def _collect(self, handled: int) -> None:
        """As the loop of a run does between two turns; it counts as time of the events."""
        began = time.thread_time()
        self.collector.after(handled)
        spent_s = time.thread_time() - began
        self.total_s += spent_s
        self.between_s = max(self.between_s, spent_s)


def make_config(instances: int, steps: int) -> Config:
    """So many instances with 64 trajectories each in flight: two batches of half of them."""
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {"instances": instances, "group_size": GROUP, "max_response_tokens": 4096,
                        "max_running": 256},
            "trainer": {"batch_groups": instances * TRAJECTORIES // GROUP // 2},
            "staleness": {"max_staleness": 2, "in_flight_batches": 2.0},
            "controller": {"lease_s": 1e7, "beat_s": 1e6},
            "simulation": {"train_token_s": 3.7e-4 / instances},
        }
    )  # fmt: skip


def measure(instances: int, steps: int) -> dict[str, Any]:
    """Microseconds per event, worst step and share of a core of one run."""
    simulation = Simulation(make_config(instances, steps), seed=1, with_digest=False)
    timed = Timed(simulation)
    with rare_collections():
        outcome = simulation.run(max_events=50_000_000)
    spent = sorted(timed.steps_s)
    rate = outcome.events / float(str(outcome.summary["time_s"]))
    return {
        "instances": instances,
        "events": outcome.events,
        "us": timed.total_s / outcome.events * 1e6,
        "route_us": (timed.many_s / timed.many if IS_COMPILED else timed.dispatch_s / timed.routes) * 1e6,
        "median_us": spent[len(spent) // 2] * 1e6,
        "p999_ms": spent[int(len(spent) * 0.999)] * 1e3,
        "worst_ms": timed.worst_s * 1e3,
        "worst_of": timed.worst_of,
        "between_ms": timed.between_s * 1e3,
        "events_per_s": rate,
        "core_share": rate * timed.total_s / outcome.events,
    }


def hot_spots(instances: int, steps: int) -> list[list[str]]:
    """Functions of the core by own time, profiled: name, share of the profiled time, calls."""
    profile = cProfile.Profile()
    simulation = Simulation(make_config(instances, steps), seed=1, with_digest=False)
    Timed(simulation, profile)
    with rare_collections():  # else a collection counts as whatever made one object too many
        simulation.run(max_events=50_000_000)
    stats: Any = pstats.Stats(profile)
    own = sorted(stats.stats.items(), key=lambda item: -item[1][2])
    return [[f"{file.rpartition('/')[2]}:{line} {name.partition(' at 0x')[0]}",
             f"{values[2] / stats.total_tt:.1%}", f"{values[3] / stats.total_tt:.1%}", f"{values[1]:,}"]
            for (file, line, name), values in own[:TOP]]  # fmt: skip


def cost(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """Cost of deciding at three sizes of cluster, and the profile at the middle one."""
    sizes = INSTANCES[:2] if runner.is_quick else INSTANCES
    found = [measure(size, 2 if runner.is_quick else STEPS[size]) for size in sizes]
    rows = []
    for one in found:
        misses = [name for name, limit in LIMITS.items() if one[name] > limit]
        counts = [f"{one[name]:,.0f}" for name in ("instances", "events", "us", "median_us", "route_us")]
        worst = [
            f"{one['p999_ms']:.1f}",
            f"{one['worst_ms']:.1f} ({one['worst_of']})",
            f"{one['between_ms']:.1f}",
        ]
        rates = [f"{one['events_per_s']:.0f}", f"{one['core_share']:.0%}"]
        said = ", ".join(f"{name} > {LIMITS[name]:g}" for name in misses)
        rows.append([*counts, *worst, *rates, said])
    header = ["instances", "events", "us per event", "median us", "us per route", "99.9 % ms", "worst ms",
              "between ms", "events per s", "share of a core", "misses"]  # fmt: skip
    worst = "worst: without the first step, and what ends the run; between: Python's collector, between steps"
    worst += ", which here also looks at what the simulated instances made"
    note = f"{TRAJECTORIES} trajectories per instance, reports once a second; {worst}."
    if IS_COMPILED:  # cProfile cannot look into it
        note += f" A route: all the time of steps with {MANY} routes or more."
        return [Table("Cost of deciding, compiled", header, rows, note)], found
    size = INSTANCES[0 if runner.is_quick else 1]
    top = hot_spots(size, 3)
    profiled = Table(
        f"Where the core's time goes, {size} instances",
        ["function", "own", "with callees", "calls"],
        top,
        "By cProfile, which makes small functions look larger.",
    )
    return [Table("Cost of deciding", header, rows, note), profiled], found


def digest() -> str:
    """Of all commands of a small run with faults."""
    faults = Faults(rollout_kills=0.05, stragglers=0.05, slow_links=0.02, late_share=0.02)
    return Simulation(make_config(8, 4), seed=7, faults=faults).run().digest


def determinism(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """The digest under three hash seeds, each in a process of its own."""
    del runner
    code = "from benchmarks.coordination.cost import digest; print(digest())"
    rows = []
    for seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        rows.append([seed, done.stdout.strip()])
    verdict = "Equal." if len({row[1] for row in rows}) == 1 else "NOT equal."
    return [Table("Determinism", ["PYTHONHASHSEED", "digest of all commands"], rows, verdict)], []
