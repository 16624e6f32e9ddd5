"""Estimates how busy rollout instances can be at most while trajectories wait for environments.

Invariant: it is a mean from drawn episodes, without any run, and no promise. The limit is the window of the
staleness bound, into which the longest episode of a batch has to fit: the other episodes of the batch end
earlier, and their places are filled only once the batch is trained.
"""

from typing import Any, NamedTuple

import numpy as np

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost

ROUNDS = 40  # of fixed-point iteration between the share of waiting and the load
EPISODES = 4000  # that are drawn


class Filling(NamedTuple):
    """How well episodes fill the instances."""

    in_flight: int  # episodes at most
    alive: float  # episodes in flight that are not over, on average
    waiting: float  # share of their time in environments
    rows: int  # trajectories that instances run at once, all together
    episodes_per_s: float  # that end

    @property
    def busy(self) -> float:
        """Share of the rows that can be in use, on average."""
        return min(1.0, self.alive * (1 - self.waiting) / self.rows)

    def in_words(self) -> str:
        """A sentence, with a remedy if rows stay empty."""
        numbers = (
            f"in flight {self.in_flight}, of which {self.alive:.0f} are not over, "
            f"waiting {self.waiting:.2f}, rows {self.rows}"
        )
        said = f"instances can be at most {self.busy:.0%} busy: {numbers}"
        remedy = "raise staleness.max_staleness or trainer.batch_groups, or lower rollout.max_running"
        return f"{said}; {remedy}" if self.busy < 1 else said


class _Drawn(NamedTuple):
    """Episodes: an entry each."""

    turns: Any  # arrays
    sampled: Any
    given: Any
    waited_s: Any


def filling(config: Config) -> Filling | None:
    """How well the episodes of `simulation.environment` and `simulation.workload` fill the instances.

    None without an agent, or without local instances, as those that attach later are not known.
    """
    if not config.agent.is_on or not config.rollout.instances:
        return None
    rollout, agent, simulation = config.rollout, config.agent, config.simulation
    batch, window = config.trainer.batch_groups * rollout.group_size, config.staleness.max_staleness + 1
    in_flight = batch * window
    if agent.workers:  # else agent workers attach later and are not known
        in_flight = min(in_flight, agent.workers * agent.concurrency)
    drawn, cost = _draw(config), step_cost(config)
    tokens = simulation.workload.prompt_tokens + drawn.sampled + drawn.given
    train_s = simulation.train_base_s + train_token_s(config) * batch * tokens.mean()
    lost_s = train_s + simulation.publish_s + simulation.pull_s
    context = float((tokens * drawn.turns).sum() / drawn.turns.sum()) / 2
    waiting, alive, speed, pulls = 0.0, float(in_flight), 0.0, np.zeros(EPISODES)
    for _ in range(ROUNDS):
        crowd = min(rollout.max_running, 1 + (1 - waiting) * alive / rollout.instances)  # that it is part of
        step_s = cost.stretch_s(round(crowd), round(crowd * context), 1)
        prefilled = drawn.given + pulls * context  # by all that share the steps
        lasting_s = drawn.sampled * step_s + crowd * cost.token_s * prefilled + drawn.waited_s
        period_s = max((_longest(lasting_s, batch) + lost_s) / window, train_s)
        pulls = lasting_s / period_s
        speed = min(in_flight / lasting_s.mean(), batch / period_s)
        alive = (alive + speed * lasting_s.mean()) / 2
        waiting = (waiting + float(drawn.waited_s.sum() / lasting_s.sum())) / 2
    return Filling(in_flight, float(alive), waiting, rollout.instances * rollout.max_running, float(speed))


def _draw(config: Config) -> _Drawn:
    """Episodes drawn as the simulator draws them, the same each time."""
    environment, source = config.simulation.environment, np.random.default_rng(0)
    wanted = np.round(environment.turns * np.exp(source.normal(0, environment.turns_sigma, EPISODES)))
    turns = np.clip(wanted, 1, config.agent.max_turns).astype(int)
    owner = np.repeat(np.arange(EPISODES), turns)

    def summed(values: Any) -> Any:
        return np.bincount(owner, weights=values, minlength=EPISODES)

    spread = np.exp(source.normal(0, environment.sigma, (2, len(owner))))
    lengths = source.choice(np.asarray(distribution_of(config).sample()), len(owner))
    begins = np.concatenate([[True], owner[1:] != owner[:-1]])  # its prompt is given before it is in flight
    given = np.where(begins, 0.0, environment.given_tokens * spread[0])
    return _Drawn(turns, summed(lengths), summed(given), summed(environment.wait_s * spread[1]))


def _longest(lasting_s: Any, count: int) -> float:
    """Expected duration of the longest of `count` episodes."""
    shares = (np.arange(len(lasting_s) + 1) / len(lasting_s)) ** count
    return float(np.diff(shares) @ np.sort(lasting_s))
