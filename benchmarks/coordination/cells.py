"""Simulated runs of the benchmark: what they are, and their figures, kept from one call to the next.

Invariants: a cell is a configuration and a seed; its figures are kept under a digest of both and count only
for the source they were made with, unless the caller asks for whatever is there; a failed run keeps its
place with the reason. Source of the cluster: a 16-instance study whose figures and bounds are published.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest import mock

from controller.compiled.finder import SWITCH
from controller.config.models import Config
from controller.simulation import Simulation, window
from controller.simulation.bounds import throughput_bound
from controller.simulation.compare import TRANSIENT_STEPS
from strategies.presets import FIXED_BOUND
from tests.support import published_study

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "runs" / "coordination"
SOURCES = ("strategies", "controller", "protocol", "workers/simulated")
WORKLOADS = ("lognormal", "bimodal", "power_law", "uniform")
MAX_EVENTS = 20_000_000
Figures = dict[str, Any]


class Shape(NamedTuple):
    """A cluster and its batch; the load of one instance is the same in all but `wide`."""

    instances: int
    prompts: int
    group_size: int
    correlation: float = 0.0
    cap: int | None = None  # of response tokens; None: the workload's own
    speeds: tuple[float, ...] = (1.0,)  # of the instances, repeated


SHAPES = {
    "single": Shape(16, 512, 1),
    "small": Shape(16, 32, 16),
    "groups": Shape(64, 128, 16),
    "tied": Shape(64, 128, 16, 0.8),
    "wide": Shape(128, 128, 16, 0.0, 20_000),
    "mixed": Shape(16, 512, 1, speeds=(1.0, 0.4)),
}
FIELDS = (
    "shape",
    "publish",
    "is_reserved",
    "seed",
    "steps",
    "scale",
    "charges",
)  # of a cell, besides its rules
TRAIN_S_PER_TOKEN = 2.3e-5  # of a trainer that fits 16 instances; others have more GPUs


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulated run; `rules` are keys of `staleness` besides the bound."""

    workload: str
    bound: int
    rules: tuple[tuple[str, Any], ...] = ()
    shape: str = "single"
    publish: str = "honest"  # or "early": on the terms and with the lengths of that study
    is_reserved: bool = False  # KV is taken for final lengths, as there; with early publishing
    seed: int = 1
    steps: int = published_study.VERSIONS
    scale: int = 1  # divides instances and prompts alike
    charges: tuple[tuple[str, float], ...] = ()  # keys of `simulation` besides

    @property
    def config(self) -> Config:
        """Its whole configuration. Raises: ConfigError if a rule is unknown or cannot be."""
        shape = SHAPES[self.shape]
        tree = json.loads(
            published_study.make_config(self.workload, 1, versions=self.steps).model_dump_json()
        )
        instances = max(1, shape.instances // self.scale)
        tree["rollout"] |= {"instances": instances, "group_size": shape.group_size}
        tree["rollout"]["max_response_tokens"] = shape.cap or tree["rollout"]["max_response_tokens"]
        tree["trainer"]["batch_groups"] = max(1, shape.prompts // self.scale)
        tree["simulation"] |= {"publish": self.publish, "report_s": 10.0}
        if self.publish == "honest":
            tree["simulation"] |= {"pull_s": published_study.SYNC_S, "train_base_s": 0.0}
        tree["simulation"]["train_token_s"] = TRAIN_S_PER_TOKEN * 16 / instances
        tree["simulation"] |= dict(self.charges)
        tree["simulation"]["workload"]["group_correlation"] = shape.correlation
        tree["simulation"]["engine"]["speeds"] = shape.speeds
        tree["staleness"] = {
            "max_staleness": self.bound, "keep_kv": True, "decide_s": 2.0, **dict(self.rules)
        }  # fmt: skip
        if spare := tree["staleness"].get("spare_groups"):
            tree["staleness"]["spare_groups"] = max(1, spare // self.scale)
        return Config.model_validate_json(json.dumps(tree))


def cell(workload: str, bound: int, strategy: str = "staleflow", **rest: Any) -> Cell:
    """A cell under a preset; what is no field of a cell is a key of `staleness`."""
    own = {key: rest.pop(key) for key in FIELDS if key in rest}
    rules = tuple(sorted({"strategy": strategy, **rest}.items()))
    return Cell(workload, FIXED_BOUND.get(strategy, bound), rules, **own)


def source_digest() -> str:
    """Of everything that a simulated run executes."""
    digest = blake2b(digest_size=8)
    for file in sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def run(one: Cell) -> Figures:
    """The figures of a cell, or `{"failure": reason}`."""
    config, began = one.config, time.perf_counter()
    if one.publish == "early":
        simulation = published_study.study_simulation(config, seed=one.seed, is_reserved=one.is_reserved)
    else:
        simulation = Simulation(config, seed=one.seed, with_digest=False)
    try:
        outcome = simulation.run(max_events=MAX_EVENTS)
    except RuntimeError as error:
        return {"failure": str(error)}
    skip = min(TRANSIENT_STEPS, one.steps // 3)
    figures = window(outcome.starts, max_staleness=one.bound, skip=skip)
    if figures is None or not outcome.is_success:
        return {"failure": outcome.reason or f"{len(outcome.starts)} train steps are too few to measure"}
    return {
        **asdict(figures),
        "upper_bound": throughput_bound(config),
        "length_ratio": figures.mean_tokens / drawn_tokens(simulation, config, skip),
        "events": outcome.events,
        "wall_s": time.perf_counter() - began,
    }


def drawn_tokens(simulation: Simulation, config: Config, skip: int) -> float:
    """Mean length of the responses that the steps after the first `skip` train if none is lost.

    It is that of the draw, not of the workload: a few hundred correlated responses are no fair sample.
    """
    batch, length = config.trainer.batch_groups, simulation.cluster.workload.length
    groups, members = range(batch * skip, batch * config.run.steps), range(config.rollout.group_size)
    return fmean(length(group, member) for group in groups for member in members)


class Runner:
    """Runs cells, at most `processes` at a time, and keeps their figures in one JSON file."""

    def __init__(
        self,
        *,
        processes: int,
        is_quick: bool,
        steps: int,
        scale: int,
        seconds: float,
        seeds: int,
        keep: bool,
    ) -> None:
        """`steps`: at most so many in a run; `scale` divides clusters and batches; no run begins after
        `seconds`; `keep`: figures that other source made count, too."""
        self.processes, self.is_quick, self.seeds, self.keep = processes, is_quick, seeds, keep
        self.steps, self.scale = (12, 8) if is_quick else (steps, scale)
        self.ends = time.monotonic() + seconds
        self.source = source_digest()
        self._path = KEPT / ("quick.json" if is_quick else "cells.json")
        self._kept: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def measure(self, cells: Iterable[Cell]) -> dict[Cell, Figures]:
        """Figures of those cells that are known or could be run in time, in order of seeds."""
        wanted = {one: self._sized(one) for one in sorted(cells, key=lambda one: one.seed)}
        keys = {one: self._key(one) for one in dict.fromkeys(wanted.values())}
        missing = [one for one, key in keys.items() if not self._is_known(key)]
        print(f"{len(keys)} runs, {len(missing)} of them to be made", flush=True)
        with pool_for(missing, self.processes) as pool:
            started = {pool.submit(run_in_time, one, self.ends): one for one in missing}
            try:
                for count, future in enumerate(as_completed(started), 1):
                    if (figures := future.result()) is not None:
                        self._keep(keys[started[future]], started[future], figures)
                        print(f"  {count}/{len(missing)} {told(started[future], figures)}", flush=True)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # else the others go on in silence
                raise
        return {one: self._kept[keys[own]]["figures"] for one, own in wanted.items()
                if self._is_known(keys[own])}  # fmt: skip

    def _sized(self, one: Cell) -> Cell:
        return replace(one, steps=min(one.steps, self.steps), scale=self.scale)

    def _is_known(self, key: str) -> bool:
        return key in self._kept and (self.keep or self._kept[key]["source"] == self.source)

    def _key(self, one: Cell) -> str:
        text = f"{one.config.model_dump_json()}/{one.seed}"
        if one.publish == "early":
            text += "/as in the study" + "/reserved" * one.is_reserved
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def _keep(self, key: str, one: Cell, figures: Figures) -> None:
        self._kept[key] = {"source": self.source, "cell": asdict(one), "figures": figures}
        KEPT.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(self._kept, indent=1), encoding="utf-8")
        draft.replace(self._path)


@contextmanager
def pool_for(cells: Iterable[Cell], processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for these cells.

    Where KV is reserved, a method of the core is replaced, which a compiled core refuses: then they begin
    anew and run the sources.
    """
    if any(one.is_reserved for one in cells):
        pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
        with mock.patch.dict(os.environ, {SWITCH: "0"}), pool:
            yield pool
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            yield pool


def run_in_time(one: Cell, ends: float) -> Figures | None:
    """The figures of a cell, or None if the time is over before it begins."""
    return run(one) if time.monotonic() < ends else None


def told(one: Cell, figures: Figures) -> str:
    """A run in one line."""
    rules = " ".join(f"{key}={value}" for key, value in one.rules)
    head = f"{one.shape} {one.workload} bound {one.bound} seed {one.seed} {rules}:"
    if "failure" in figures:
        return f"{head} failed: {figures['failure']}"
    share = figures["trajectories_per_s"] / figures["upper_bound"]
    return f"{head} {figures['trajectories_per_s']:.2f}/s {share:.2f} of bound, mean staleness " + (
        f"{figures['staleness_mean']:.2f}, {figures['violations']} violations, {figures['wall_s']:.0f} s"
    )
