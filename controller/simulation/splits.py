"""Searches the split of devices between rollout and training, with bound and cap, in the simulator.

Invariants: every point is a simulated run of the production core, with the same lengths for equal seeds; each
split is valid for the configuration; the trainer's speed is proportional to its ranks
(`simulation.train_token_s` is that of `trainer.ranks` ranks), and `simulation.train_base_s` stays.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from controller.config.load import change_config
from controller.config.models import Config
from controller.simulation.bounds import throughput_bound
from controller.simulation.compare import TRANSIENT_STEPS, cell_config, simulate
from controller.simulation.intervals import half_width
from controller.simulation.records import Window, sampler_cycle, whole_cycles, window
from protocol.errors import ConfigError


class Split(NamedTuple):
    """One way to use the devices."""

    ranks: int
    instances: int
    max_staleness: int
    in_flight_batches: float

    @property
    def overrides(self) -> list[str]:
        """The split as overrides on a command line."""
        return [
            f"trainer.ranks={self.ranks}",
            f"rollout.instances={self.instances}",
            f"staleness.max_staleness={self.max_staleness}",
            f"staleness.in_flight_batches={self.in_flight_batches:g}",
        ]


@dataclass(frozen=True, slots=True)
class Point:
    """The results of a split, as means over the seeds."""

    split: Split
    tokens_per_s: float
    half_width: float | None  # of its 95 % interval; None with one seed
    staleness_mean: float
    trainer_idle: float
    rollout_idle: float


OnPoint = Callable[[Point], None]


def best_splits(
    config: Config,
    gpus: int,
    *,
    bounds: Sequence[int],
    seeds: Sequence[int],
    on_point: OnPoint = lambda point: None,
) -> list[Point]:
    """Points that the search has simulated, with the best split that it finds for each bound and cap.

    For each bound and cap it begins at the split with the highest upper bound (`throughput_bound`), and goes
    on to neighbours as long as they are better. Raises: ConfigError if no split is valid.
    """
    found: dict[Split, Point | None] = {}

    def value(split: Split) -> float:
        if split not in found:
            found[split] = point = measure(config, split, seeds)
            if point is not None:
                on_point(point)
        point = found[split]
        return point.tokens_per_s if point else -1.0

    for bound in bounds:
        for cap in caps_of(bound):
            _climb(config, [*splits_of(config, gpus, bound, cap)], value)
    points = [point for point in found.values() if point is not None]
    if not points:
        raise ConfigError(
            f"No split of {gpus} devices makes a run: expected enough for one trainer rank and an instance "
            f"of {devices_per_instance(config)}, and run.steps of 20 or more."
        )
    return points


def all_points(config: Config, gpus: int, *, bounds: Sequence[int], seeds: Sequence[int]) -> list[Point]:
    """Points of all splits with every bound and cap, to check the search."""
    splits = [s for bound in bounds for cap in caps_of(bound) for s in splits_of(config, gpus, bound, cap)]
    return [point for split in splits if (point := measure(config, split, seeds)) is not None]


def front(points: Iterable[Point]) -> list[Point]:
    """The Pareto front of tokens per second and mean staleness, the least staleness first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.staleness_mean, -one.tokens_per_s)):
        if not kept or point.tokens_per_s > kept[-1].tokens_per_s:
            kept.append(point)
    return kept


def chosen(points: Sequence[Point], most_staleness: float | None) -> Point | None:
    """The fastest point with at most this mean staleness; None if there is none."""
    fresh = [p for p in points if most_staleness is None or p.staleness_mean <= most_staleness]
    return max(fresh, key=lambda point: point.tokens_per_s, default=None)


def caps_of(bound: int) -> list[float]:
    """Caps to try, in batches in the system: one, all that the bound allows, and the middle."""
    return sorted({1.0, 1.0 + bound / 2, 1.0 + bound})


def devices_per_instance(config: Config) -> int:
    """Devices of one rollout instance."""
    return config.rollout.vllm.tensor_parallel_size if config.rollout.engine == "vllm" else 1


def splits_of(config: Config, gpus: int, bound: int, cap: float) -> Iterator[Split]:
    """Valid splits, fewest ranks first; each uses all devices."""
    size = devices_per_instance(config)
    for instances in range((gpus - 1) // size, 0, -1):
        split = Split(gpus - instances * size, instances, bound, cap)
        try:
            config_of(config, split)
        except ConfigError:  # more ranks than responses of a minibatch, and the like
            continue
        yield split


def config_of(config: Config, split: Split) -> Config:
    """The configuration of one split. Raises: ConfigError if it is not valid."""
    speed = config.simulation.train_token_s * config.trainer.ranks / split.ranks
    own = change_config(config, [*split.overrides, f"simulation.train_token_s={speed!r}"])
    return cell_config(own, own.staleness.strategy, split.max_staleness)


def measure(config: Config, split: Split, seeds: Sequence[int]) -> Point | None:
    """A split over all seeds; None if a run of it fails or is too short. Raises: ConfigError."""
    own, figures = config_of(config, split), list[Window]()
    for seed in seeds:
        outcome, reason = simulate(own, seed=seed)
        if outcome is None or reason:
            return None
        skip = min(TRANSIENT_STEPS, len(outcome.starts) // 3)
        most = split.max_staleness + 1
        skip = whole_cycles(outcome.starts, skip=skip, most=most, cycle=sampler_cycle(own))
        one = window(outcome.starts, max_staleness=split.max_staleness, skip=skip)
        if one is None:
            return None
        figures.append(one)
    speeds = [one.tokens_per_s for one in figures]
    return Point(
        split,
        fmean(speeds),
        half_width(speeds),
        fmean(one.staleness_mean for one in figures),
        fmean(one.trainer_idle for one in figures),
        fmean(one.rollout_idle for one in figures),
    )


def _climb(config: Config, splits: Sequence[Split], value: Callable[[Split], float]) -> None:
    """Go from the split with the highest upper bound to better neighbours, until there is none."""
    if not splits:
        return
    promise = [throughput_bound(config_of(config, split)) for split in splits]
    place = max(range(len(splits)), key=lambda i: promise[i])
    while True:
        around = [i for i in (place - 1, place, place + 1) if 0 <= i < len(splits)]
        best = max(around, key=lambda i: value(splits[i]))
        if best == place:
            return
        place = best
