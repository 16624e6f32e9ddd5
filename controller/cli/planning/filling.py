"""How busy rollout instances can be at most where trajectories wait for environments.

Invariant: nothing runs for it; it is a mean, so a share of rows and no promise. What limits it is the window
of the bound, which the longest episode of a batch has to fit into: the others of its batch are over before,
and what they leave empty is filled only once the batch is trained.
"""

from typing import Any, NamedTuple

import numpy as np

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost

ROUNDS = 40  # until the share of waiting and the crowd that follows from it agree
EPISODES = 4000  # that are drawn


class Filling(NamedTuple):
    """What there is to fill instances with."""

    in_flight: int  # episodes at most
    alive: float  # of these, on average, not over yet
    waiting: float  # share of their time that those spend in environments
    rows: int  # trajectories that instances run at once, all together
    episodes_per_s: float  # that end so

    @property
    def busy(self) -> float:
        """Share of the rows that can be in use, on average."""
        return min(1.0, self.alive * (1 - self.waiting) / self.rows)

    def in_words(self) -> str:
        """The sentence, with what to do where rows stay empty."""
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
    """What `simulation.environment` and `simulation.workload` come to.

    None without an agent, or without instances: of those that attach nothing is known.
    """
    if not config.agent.is_on or not config.rollout.instances:
        return None
    rollout, agent, simulation = config.rollout, config.agent, config.simulation
    batch, window = config.trainer.batch_groups * rollout.group_size, config.staleness.max_staleness + 1
    in_flight = batch * window
    if agent.workers:  # others may attach, of whom nothing is known
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
    """Episodes as the simulator has them, the same each time."""
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
    """Mean of the longest of so many episodes."""
    shares = (np.arange(len(lasting_s) + 1) / len(lasting_s)) ** count
    return float(np.diff(shares) @ np.sort(lasting_s))
