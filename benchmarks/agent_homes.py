"""What it is worth to bring a turn of an agent back to the instance that has its KV, in the simulator.

    python -m benchmarks.agent_homes             4 shares of waiting x bounds 1 to 3, three seeds
    python -m benchmarks.agent_homes --waits 0.6 --bounds 2 --seeds 1

Sixteen instances of the published 7B coefficients, episodes of about eight turns, contexts of some thousand
tokens. `price` is StaleFlow: home counts as much as the prefill that it saves. `always` waits for a place at
home; `never` does not know of homes. Episodes per second over all steps but the first two. The bound is the
lower one of that of controller/simulation/bounds.py without waits, and of a batch whose longest episode has
its waits and an idle instance for itself. Expected is what controller/cli/planning/filling.py has: the same
with instances as crowded as they are, and with what is prefilled again after each pull.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import exp

from controller.cli.planning.filling import filling
from controller.config.models import Config
from controller.simulation.bounds import Demand, alone_s, shortest_period_s, with_tail
from controller.simulation.host import Outcome, Simulation
from controller.simulation.simulated_workers import distribution_of
from strategies.routing import by_marginal_gain
from strategies.views import InstanceView, Settings, WorkView

GROUP_SIZE, BATCH_GROUPS, INSTANCES = 8, 8, 16
TURNS, TURNS_SIGMA, GIVEN, SIGMA, MAX_TURNS = 8, 0.4, 256, 0.5, 16
TURN_S = 1.5  # that a turn takes on an instance: what the shares of waiting are made from
PROMPT, MEDIAN, LONGEST = 512, 100, 512
SKIPPED = 2  # first steps
EPISODES = 4000  # that the bound is made from
WAYS = {
    "price": {},
    "always": {"routing": "benchmarks.agent_homes:always_home"},
    "never": {"affinity": False},
}


def always_home(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The home of the work, or nothing until it has room there; `marginal_gain` where it has none."""
    home = [instance for instance in instances if instance.id == work.home]
    return by_marginal_gain(work, home or instances, settings)


def wait_s(share: float) -> float:
    """Median wait for which an episode spends this share of its time in its environment."""
    return TURN_S * share / (1 - share) / exp(SIGMA**2 / 2)


def config_for(share: float, max_staleness: int, steps: int, way: str) -> Config:
    """A run of one cell."""
    at_once = (max_staleness + 2) * BATCH_GROUPS * GROUP_SIZE
    return Config.model_validate({
        "run": {"steps": steps},
        "rollout": {
            "instances": INSTANCES, "group_size": GROUP_SIZE, "max_running": 64,
            "max_prompt_tokens": 12_000, "max_response_tokens": LONGEST,
        },
        "agent": {"function": "simulated", "concurrency": at_once, "max_turns": MAX_TURNS},
        "trainer": {"batch_groups": BATCH_GROUPS},
        "staleness": {"max_staleness": max_staleness, **WAYS[way]},
        "simulation": {
            "workload": {"prompt_tokens": PROMPT, "median_tokens": MEDIAN, "sigma": 0.5},
            "environment": {
                "turns": TURNS, "turns_sigma": TURNS_SIGMA, "given_tokens": GIVEN, "sigma": SIGMA,
                "wait_s": wait_s(share), "start_s": 0.1,
            },
            "train_token_s": 5e-6, "pull_s": 0.5,
        },
    })  # fmt: skip


def episodes_per_s(outcome: Outcome) -> float:
    """Over all steps but the first."""
    starts = outcome.starts[SKIPPED:]
    trained = sum(start.trajectories for start in starts[1:])
    return trained / (starts[-1].at_s - starts[0].at_s)


def prefilled_per_token(outcome: Outcome) -> float:
    """Tokens that engines prefilled, for each that they sampled."""
    return outcome.starts[-1].totals.prefilled / outcome.starts[-1].totals.decoded


def bound_with_waits(config: Config) -> float:
    """Episodes per second that no scheduler exceeds: instances, trainer, and the longest of each batch."""
    draw, lengths, environment = (
        random.Random(0),
        distribution_of(config).sample(),
        config.simulation.environment,
    )
    sampled, given, waited = [], [], []
    for _ in range(EPISODES):
        turns = min(MAX_TURNS, max(1, round(TURNS * exp(draw.gauss(0, TURNS_SIGMA)))))
        sampled.append(sum(draw.choice(lengths) for _ in range(turns)))
        given.append(sum(GIVEN * exp(draw.gauss(0, SIGMA)) for _ in range(turns - 1)))
        waited.append(sum(environment.wait_s * exp(draw.gauss(0, SIGMA)) for _ in range(turns)))
    extra = sum(given) / EPISODES
    demand = Demand.of(config)
    demand = replace(
        demand,
        classes=with_tail(sorted(sampled), 24, 8),
        prompt_tokens=round(PROMPT + extra / 2),
        prefill_tokens=PROMPT / GROUP_SIZE + extra,
    )
    lasting = [wait + alone_s(demand, tokens) for wait, tokens in zip(waited, sampled, strict=True)]
    batches = [lasting[begin : begin + demand.batch] for begin in range(0, EPISODES, demand.batch)]
    longest_s = sum(map(max, batches)) / len(batches)
    most = config.staleness.max_staleness
    by_tail_s = (longest_s + demand.lost_s) / (most + 1)
    return demand.batch / max(by_tail_s, shortest_period_s(demand, most))


def cell(share: float, max_staleness: int, seeds: int, steps: int) -> dict[str, float]:
    """Episodes per second of each way, mean over the seeds; and `prefill/WAY`."""
    found: dict[str, float] = {}
    for way in WAYS:
        config = config_for(share, max_staleness, steps, way)
        ended = [Simulation(config, seed=seed, with_digest=False).run() for seed in range(seeds)]
        for outcome in ended:
            assert outcome.is_success, outcome.reason
        found[way] = sum(map(episodes_per_s, ended)) / seeds
        found[f"prefill/{way}"] = sum(map(prefilled_per_token, ended)) / seeds
    return found


def main() -> None:
    """Print a row for each cell, and in how many the price is at least as fast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waits", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.8])
    parser.add_argument("--bounds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    print(
        f"{'waiting':>8}{'bound':>6}{'price':>9}{'always':>9}{'never':>9}{'of bound':>10}{'of expected':>13}"
        "   prefill/token"
    )
    wins = count = 0
    for share, most in product(chosen.waits, chosen.bounds):
        found = cell(share, most, chosen.seeds, chosen.steps)
        config = config_for(share, most, chosen.steps, "price")
        limit, expected = bound_with_waits(config), filling(config)
        assert expected is not None
        wins += found["price"] >= 0.99 * max(found["always"], found["never"])
        count += 1
        speeds = "".join(f"{found[way]:9.2f}" for way in WAYS)
        prefills = " ".join(f"{found[f'prefill/{way}']:.2f}" for way in WAYS)
        shares = f"{found['price'] / limit:10.0%}{found['price'] / expected.episodes_per_s:13.0%}"
        print(f"{share:8.1f}{most:6}{speeds}{shares}   {prefills}", flush=True)
    print(f"At least as fast as both, within 1 %: {wins} of {count} cells.")


if __name__ == "__main__":
    main()
