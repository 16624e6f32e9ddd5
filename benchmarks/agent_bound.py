"""Episodes per second that no scheduler exceeds where episodes wait for environments.

Invariants: what is counted is what every scheduler has to spend; a group is begun under the version that is
the newest then, and with each version as many groups begin as a batch takes, in the order of their prompts. A
scheduler that knew all lengths beforehand could begin slow groups together; none here does.

A batch begins at most `max_staleness` steps behind the first version of its groups, so its longest episode
has (`max_staleness` + 1) periods, less what goes by until a new version is on an instance. Such an episode is
given an instance for itself, its home for all of its turns, that never pulls: it decodes at the speed of one
row, prefills what its environment gives and nothing twice, not even its prompt, and waits for its
environment. What instances and trainer can do at all is the program of controller/simulation/bounds.py.
"""

import random
from dataclasses import dataclass, replace
from math import exp
from statistics import fmean

from controller.config.models import Config
from controller.simulation.bounds import Demand, shortest_period_s, with_tail
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of
from workers.simulated import StepCost

EPISODES = 16_000  # that it is made from
CLASSES, TAIL_CLASSES = 24, 8


@dataclass(frozen=True, slots=True)
class Drawn:
    """One episode, drawn as the simulator draws them."""

    sampled: tuple[int, ...]  # tokens of each turn
    given: tuple[int, ...]  # tokens before each turn but the first
    waited_s: float  # a wait behind each turn


def drawn(config: Config, count: int) -> list[Drawn]:
    """So many episodes, the same each time."""
    draw, lengths = random.Random(0), distribution_of(config).sample()
    environment = config.simulation.environment

    def about(median: float, sigma: float) -> float:
        return median * exp(draw.gauss(0, sigma))

    found: list[Drawn] = []
    for _ in range(count):
        turns = min(config.agent.max_turns, max(1, round(about(environment.turns, environment.turns_sigma))))
        sampled = tuple(draw.choice(lengths) for _ in range(turns))
        given = tuple(
            max(1, round(about(environment.given_tokens, environment.sigma))) for _ in range(turns - 1)
        )
        waited_s = sum(about(environment.wait_s, environment.sigma) for _ in range(turns))
        found.append(Drawn(sampled, given, waited_s))
    return found


def alone_s(episode: Drawn, cost: StepCost, prompt_tokens: int) -> float:
    """Seconds that its turns take on an idle instance which has the KV of its prompt and all turns before.

    The step that prefills a turn samples its first token.
    """
    seconds, context = 0.0, prompt_tokens - 1  # tokens there; the newest one is computed with what follows
    for sampled, given in zip(episode.sampled, (0, *episode.given), strict=True):
        seconds += cost.mixed_s([(given + 1, context)], 0, 0)
        seconds += cost.stretch_s(1, context + given + 2, sampled - 1)
        context += given + sampled
    return seconds


def bound_with_waits(config: Config) -> float:
    """Episodes per second: the lower one of what the longest episodes and what the instances admit."""
    episodes = drawn(config, EPISODES)
    demand = Demand.of(config)
    prompt, most = demand.prompt_tokens, config.staleness.max_staleness
    sampled = [sum(one.sampled) for one in episodes]
    given = fmean(sum(one.given) for one in episodes)
    tokens = prompt + given + fmean(sampled)
    train_s = config.simulation.train_base_s + train_token_s(config) * demand.batch * tokens
    lost_s = demand.lost_s if config.trainer.streaming else demand.lost_s + train_s - demand.train_s
    demand = replace(
        demand,
        classes=with_tail(sorted(sampled), CLASSES, TAIL_CLASSES),
        prompt_tokens=round(prompt + given / 2),
        prefill_tokens=prompt / config.rollout.group_size + given,
        train_s=train_s,
        lost_s=lost_s,
    )
    lasting = [one.waited_s + alone_s(one, demand.cost, prompt) for one in episodes]
    batches = [lasting[begin : begin + demand.batch] for begin in range(0, EPISODES, demand.batch)]
    by_tail_s = (fmean(map(max, batches)) + lost_s) / (most + 1)
    return demand.batch / max(by_tail_s, shortest_period_s(demand, most))
