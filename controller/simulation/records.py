"""Records a simulated run from outside the core, and computes the figures of a window of it.

Invariants: staleness is counted from the messages that reach the trainer, not from the core's own accounts; a
window goes from the start of one train step to the start of another, so that it holds whole periods; counters
are totals, so that the figures of a window are differences of two totals.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from controller.config.models import Config
from protocol.messages import Train
from workers.simulated import SimulatedRollout, SimulatedTrainer

MAX_SAMPLES = 600  # rows of the load; with more, every second row is dropped


class Totals(NamedTuple):
    """Counters of the whole run up to a time."""

    generated: int  # tokens, counted by the core; so are the next three
    aborted: int
    filtered: int
    lost: int
    decode_steps: int  # counted by the engines; so are the next four
    decoded: int
    prefilled: int
    reprefilled: int
    preemptions: int
    rollout_busy_s: float  # summed over instances
    trainer_busy_s: float


class TrainStart(NamedTuple):
    """One batch on its way to the trainer."""

    at_s: float
    instances: int
    groups: tuple[int, ...]
    trajectories: int
    response_tokens: int  # sampled ones
    ages: dict[int, int]  # staleness -> trajectories
    totals: Totals


def engine_totals(rollouts: list[SimulatedRollout]) -> tuple[int, int, int, int, int, float]:
    """Totals of all engines so far.

    These are decode steps, tokens decoded, prefilled and prefilled again, preemptions, and busy seconds.
    """
    engines = [rollout.engine for rollout in rollouts]
    return (
        sum(engine.decode_steps for engine in engines),
        sum(engine.decode_tokens for engine in engines),
        sum(engine.prefill_tokens for engine in engines),
        sum(engine.reprefill_tokens for engine in engines),
        sum(engine.preemptions for engine in engines),
        sum(engine.busy_s for engine in engines),
    )


def train_start(
    now: float, message: Train, rollouts: list[SimulatedRollout], trainer: SimulatedTrainer,
    *, spent: tuple[int, int, int, int], instances: int,
) -> TrainStart:  # fmt: skip
    """The record of one batch. `spent`: tokens generated, aborted, filtered and lost so far."""
    ages: Counter[int] = Counter()
    tokens = 0
    for item in message.items:
        versions = [segment.policy_version for segment in item.segments if not segment.is_given]
        if versions:
            ages[message.train_version - versions[0]] += 1
        tokens += item.sampled_tokens
    totals = Totals(*spent, *engine_totals(rollouts), trainer.busy_s)
    groups = tuple(sorted({item.group for item in message.items}))
    return TrainStart(now, instances, groups, len(message.items), tokens, dict(sorted(ages.items())), totals)


@dataclass(slots=True)
class Load:
    """Running and queued requests of each instance over time, in at most MAX_SAMPLES rows.

    An instance keeps its column when its process dies and another one takes its name.
    """

    every_s: float = 1.0
    times: list[float] = field(default_factory=list)
    running: list[list[int]] = field(default_factory=list)
    queued: list[list[int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the columns

    def take(self, now: float, rollouts: Mapping[str, SimulatedRollout]) -> float:
        """Add a row of the living instances, by name; returns the seconds until the next one is wanted."""
        self.names += [name for name in rollouts if name not in self.names]
        there = [rollouts.get(name) for name in self.names]
        self.times.append(now)
        self.running.append([0 if one is None else one.engine.running for one in there])
        self.queued.append([0 if one is None else len(one.engine.queue) for one in there])
        if len(self.times) > MAX_SAMPLES:
            self.times, self.running, self.queued = self.times[::2], self.running[::2], self.queued[::2]
            self.every_s *= 2
        return self.every_s


@dataclass(frozen=True, slots=True)
class Window:
    """Figures of a run between two train starts."""

    steps: int
    seconds: float
    trajectories_per_s: float
    tokens_per_s: float  # of trained responses
    mean_tokens: float  # of a trained response; much less than the workload's mean if long ones were lost
    staleness_mean: float
    staleness_max: int
    staleness: dict[int, int]
    violations: int  # trained trajectories older than the bound
    trainer_idle: float
    rollout_idle: float  # share of instance time in which no step was made; a pull is idle too
    mean_running: float  # requests in an average decode step of an instance
    wasted_tokens: int  # aborted, filtered, lost
    reprefilled_tokens: int
    preemptions: int


def sampler_cycle(config: Config) -> int:
    """Batches of a window in which a sampler reorders prompts; 0 without one."""
    return 0 if config.staleness.sampler == "in_order" else config.staleness.sampler_batches


def whole_cycles(starts: Sequence[TrainStart], *, skip: int, most: int, cycle: int = 0) -> int:
    """`skip`, or a few train starts more, so that whole cycles are left up to the last one.

    If many groups end together, steps come in bursts, which repeat after as many steps as batches are in
    flight, at most `most`. The cycle is the lag at which the seconds between two starts repeat best. A
    sampler has its own `cycle`, its window, over which no length is favoured; with enough train starts only
    this cycle counts.
    """
    gaps = [after.at_s - before.at_s for before, after in pairwise(starts[skip:])]
    if cycle and len(gaps) >= cycle:
        return skip + len(gaps) % cycle
    lags = range(1, min(most, len(gaps) // 2) + 1)

    def apart_s(lag: int) -> float:
        return fmean(abs(after - before) for before, after in zip(gaps, gaps[lag:], strict=False))

    return skip + len(gaps) % min(lags, key=apart_s) if lags else skip


def window(starts: list[TrainStart], *, max_staleness: int, skip: int = 10) -> Window | None:
    """The figures from train start `skip` to the last one; None if fewer than two starts are left."""
    if len(starts) < skip + 2:
        return None
    first, last = starts[skip], starts[-1]
    used = starts[skip:-1]
    seconds = max(last.at_s - first.at_s, 1e-9)
    ages: Counter[int] = Counter()
    for start in used:
        ages.update(start.ages)
    trained, tokens = sum(s.trajectories for s in used), sum(s.response_tokens for s in used)
    before, after = first.totals, last.totals
    instance_s = max(sum(s.instances for s in used) / len(used) * seconds, 1e-9)
    rollout_busy_s = after.rollout_busy_s - before.rollout_busy_s
    return Window(
        steps=len(used),
        seconds=seconds,
        trajectories_per_s=trained / seconds,
        tokens_per_s=tokens / seconds,
        mean_tokens=tokens / max(1, trained),
        staleness_mean=sum(age * count for age, count in ages.items()) / max(1, ages.total()),
        staleness_max=max(ages, default=0),
        staleness=dict(sorted(ages.items())),
        violations=sum(count for age, count in ages.items() if age > max_staleness),
        trainer_idle=max(0.0, 1 - (after.trainer_busy_s - before.trainer_busy_s) / seconds),
        rollout_idle=max(0.0, 1 - rollout_busy_s / instance_s),
        mean_running=(after.decoded - before.decoded) / max(1, after.decode_steps - before.decode_steps),
        wasted_tokens=sum(getattr(after, k) - getattr(before, k) for k in ("aborted", "filtered", "lost")),
        reprefilled_tokens=after.reprefilled - before.reprefilled,
        preemptions=after.preemptions - before.preemptions,
    )
