"""How busy rollout instances can be at most where trajectories wait for environments.

Invariant: nothing runs for it; it is a mean, so a share of rows and no promise, and an upper limit: groups
that wait for their last episode or for their batch take places, too, and hold no row.
"""

from math import exp
from typing import NamedTuple

from controller.config.models import Config
from controller.simulation.simulated_workers import distribution_of, step_cost

ROUNDS = 60  # until the share of waiting and the crowd that follows from it agree


class Filling(NamedTuple):
    """What there is to fill instances with."""

    in_flight: int  # episodes at most
    waiting: float  # share of their time that they spend in environments
    rows: int  # trajectories that instances run at once, all together

    @property
    def busy(self) -> float:
        """Share of the rows that can be in use, on average."""
        return min(1.0, self.in_flight * (1 - self.waiting) / self.rows)

    def in_words(self) -> str:
        """The sentence, with what to do where rows stay empty."""
        numbers = f"in flight {self.in_flight}, waiting {self.waiting:.2f}, rows {self.rows}"
        said = f"instances can be at most {self.busy:.0%} busy: {numbers}"
        remedy = "raise staleness.max_staleness or trainer.batch_groups, or lower rollout.max_running"
        return f"{said}; {remedy}" if self.busy < 1 else said


def filling(config: Config) -> Filling | None:
    """What `simulation.environment` and `simulation.workload` come to; None without an agent."""
    if not config.agent.is_on:
        return None
    rollout, agent, environment = config.rollout, config.agent, config.simulation.environment
    in_flight = config.trainer.batch_groups * (config.staleness.max_staleness + 1) * rollout.group_size
    if agent.workers:  # others may attach, of whom nothing is known
        in_flight = min(in_flight, agent.workers * agent.concurrency)
    spread = exp(environment.sigma**2 / 2)  # mean of a lognormal distribution by its median
    waiting_s = environment.wait_s * spread
    sampled, cost = distribution_of(config).mean(), step_cost(config)
    per_turn = sampled + environment.given_tokens * spread
    context = config.simulation.workload.prompt_tokens + environment.turns * per_turn / 2
    waiting = 0.0
    for _ in range(ROUNDS):
        crowd = max(1, min(rollout.max_running, round((1 - waiting) * in_flight / rollout.instances)))
        step_s = cost.stretch_s(crowd, round(crowd * context), 1)
        prefill_s = crowd * cost.token_s * environment.given_tokens * spread  # of all that share the steps
        turn_s = sampled * step_s + prefill_s
        waiting = (waiting + waiting_s / (waiting_s + turn_s)) / 2
    return Filling(in_flight, waiting, rollout.instances * rollout.max_running)
