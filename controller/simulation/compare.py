"""Simulates one configuration under several strategies, bounds and seeds.

Invariants: every cell runs the same cluster and, for equal seeds, responses of equal lengths; a cell that
fails, or whose configuration a real run would refuse, keeps its place with the reason; shares are of the
upper bound for the cell's own max_staleness.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import get_args

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from controller.config.sections.staleness import StalenessSettings
from controller.simulation.bounds import hardware_bound, throughput_bound
from controller.simulation.faults import Faults
from controller.simulation.host import Outcome, Simulation
from controller.simulation.records import Load, Window, sampler_cycle, whole_cycles, window
from controller.simulation.similar_bound import similar_bound
from protocol.errors import ConfigError, PluginError
from strategies.own import outside_a_run
from strategies.presets import FIXED_BOUND, PRESETS

TRANSIENT_STEPS = 10  # about as many as a run needs to reach its steady state
ENDLESS_LEASE_S = 1e7  # if no worker falls silent, heartbeats would only take time
STRATEGIES: tuple[str, ...] = get_args(StalenessSettings.model_fields["strategy"].annotation)
SIMILAR = ("similar_length", "similar_length_shuffled")
PRESET_KEYS = {key for preset in PRESETS.values() for key in preset} - {"max_staleness"} | {"objective"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulated run."""

    strategy: str
    max_staleness: int
    seed: int
    figures: Window | None  # None: it failed
    reason: str
    events: int
    load: Load
    warnings: tuple[str, ...] = ()  # as a real run would give them


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy under one bound, over all seeds."""

    strategy: str
    max_staleness: int
    cells: tuple[Cell, ...]
    upper_bound: float | None  # trajectories per second; None: not known for the sampler's batches
    hardware_bound: float
    sync: float | None  # trajectories per second of the strategy `sync`

    @property
    def share_of_bound(self) -> float | None:
        """Trajectories per second over the upper bound; None without an upper bound."""
        return self.mean("trajectories_per_s") / self.upper_bound if self.upper_bound else None

    @property
    def failures(self) -> list[str]:
        """Reasons of the cells that failed."""
        return [cell.reason for cell in self.cells if cell.figures is None]

    def mean(self, name: str) -> float:
        """Mean of a figure over the seeds that worked; 0 if none did."""
        values = self.values(name)
        return fmean(values) if values else 0.0

    def values(self, name: str) -> list[float]:
        """A figure of each seed that worked."""
        return [getattr(cell.figures, name) for cell in self.cells if cell.figures is not None]

    def total(self, name: str) -> int:
        """Sum of a figure over the seeds that worked."""
        return sum(getattr(cell.figures, name) for cell in self.cells if cell.figures is not None)

    @property
    def ages(self) -> dict[int, float]:
        """Share of the trained trajectories by staleness."""
        counts: dict[int, int] = {}
        for cell in self.cells:
            for age, count in (cell.figures.staleness if cell.figures else {}).items():
                counts[age] = counts.get(age, 0) + count
        return {age: counts[age] / sum(counts.values()) for age in sorted(counts)}


def strategies_named(text: str, own: str) -> list[str]:
    """Strategies out of `a,b,c` or `all`; "" is the configuration's own. Raises: ConfigError."""
    given = [name.strip() for name in text.split(",")]
    names = list(STRATEGIES) if text == "all" else [name for name in given if name] or [own]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(f"--compare names {', '.join(twice)} more than once; expected each strategy once.")
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        raise ConfigError(
            f"--compare names {', '.join(unknown)}; expected some of {', '.join(STRATEGIES)}, or `all`."
        )
    return names


def cell_config(config: Config, strategy: str, max_staleness: int) -> Config:
    """The configuration of one cell; another strategy sets all keys of its preset."""
    tree = json.loads(config.model_dump_json())
    if strategy != config.staleness.strategy:
        tree["staleness"] = {k: v for k, v in tree["staleness"].items() if k not in PRESET_KEYS}
        if "streaming" not in config.trainer.model_fields_set:  # the objective turned it on
            del tree["trainer"]["streaming"]
    tree["staleness"] |= {"strategy": strategy, "max_staleness": max_staleness}
    in_flight = tree["staleness"].get("in_flight_batches")
    if isinstance(in_flight, float) and in_flight > max_staleness + 1:
        tree["staleness"]["in_flight_batches"] = float(max_staleness + 1)
    if not Faults.of(config.simulation.faults).may_silence:
        tree["controller"] |= {"lease_s": ENDLESS_LEASE_S, "beat_s": ENDLESS_LEASE_S / 10}
    return Config.model_validate_json(json.dumps(tree))


def refusal(config: Config, own: Config) -> str:
    """Why a real run with a cell's settings is refused though the given ones are accepted; else ""."""
    known = cross_field_problems(config)
    new = [(fields[0], text) for fields, text in cross_field_problems(own) if (fields, text) not in known]
    return "a real run is refused: " + "; ".join(f"{field}: {text}" for field, text in new) if new else ""


def simulate(config: Config, *, seed: int) -> tuple[Outcome | None, str]:
    """Run in virtual time; returns the outcome, or None, and why it failed ("" if it did not).

    Raises: PluginError if a strategy of the user's fails.
    """
    simulation = Simulation(config, seed=seed, with_digest=False)
    try:
        with outside_a_run():
            outcome = simulation.run(max_events=100_000_000)
    except RuntimeError as error:
        return None, str(error)
    return outcome, "" if outcome.is_success else outcome.reason


def compare(
    config: Config, *, strategies: Sequence[str], bounds: Sequence[int], seeds: Sequence[int],
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> list[Row]:  # fmt: skip
    """One row for each strategy and bound, `sync` first if it is among them. `on_cell` gets every run.

    Raises: ConfigError if the simulated cluster cannot hold the workload.
    """
    rows: list[Row] = []
    sync: float | None = None
    for strategy, bound in _pairs(strategies, bounds):
        own = cell_config(config, strategy, bound)
        refused = refusal(config, own)
        cells: list[Cell] = []
        for seed in seeds:
            cells.append(
                Cell(strategy, bound, seed, None, refused, 0, Load())
                if refused
                else _cell(own, strategy, bound, seed)
            )
            on_cell(cells[-1])
        row = Row(strategy, bound, tuple(cells), upper_bound_of(own), hardware_bound(own), sync)
        if strategy == "sync":
            sync = row.mean("trajectories_per_s") or None
            row = Row(strategy, bound, row.cells, row.upper_bound, row.hardware_bound, sync)
        rows.append(row)
    return rows


def upper_bound_of(config: Config) -> float | None:
    """The upper bound for batches of the configuration's sampler; None if its batches are not known."""
    sampler, workload = config.staleness.sampler, config.simulation.workload
    if sampler not in ("in_order", *SIMILAR):
        return None
    if sampler == "in_order" or not workload.prompts:  # prompts that never come again stay in order
        return throughput_bound(config)
    epochs = ceil(config.run.steps * config.trainer.batch_groups / workload.prompts)
    return similar_bound(config, seen=config.rollout.group_size * max(1, epochs - 1))


def _pairs(strategies: Sequence[str], bounds: Sequence[int]) -> Iterator[tuple[str, int]]:
    for strategy in sorted(strategies, key=lambda name: name != "sync"):
        for bound in [FIXED_BOUND[strategy]] if strategy in FIXED_BOUND else bounds:
            yield strategy, bound


def _cell(config: Config, strategy: str, bound: int, seed: int) -> Cell:
    try:
        outcome, reason = simulate(config, seed=seed)
    except PluginError as error:  # cells of other strategies have figures
        outcome, reason = None, str(error)
    told = tuple(outcome.warnings) if outcome else ()
    if outcome is None or reason:
        return Cell(strategy, bound, seed, None, reason, outcome.events if outcome else 0, Load(), told)
    skip = min(TRANSIENT_STEPS, len(outcome.starts) // 3)
    skip = whole_cycles(outcome.starts, skip=skip, most=bound + 1, cycle=sampler_cycle(config))
    figures = window(outcome.starts, max_staleness=bound, skip=skip)
    if figures is None:
        reason = f"{len(outcome.starts)} train steps are too few to measure; raise run.steps to 20 or more."
    return Cell(strategy, bound, seed, figures, reason, outcome.events, outcome.load, told)
