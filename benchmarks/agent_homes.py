"""What it is worth to bring a turn of an agent back to the instance that has its KV, in the simulator.

    nice -n 10 python -m benchmarks.agent_homes --processes 2     4 shares of waiting x bounds 1 to 3, 3 seeds
    python -m benchmarks.agent_homes --waits 0.6 --bounds 2 --seeds 1

Sixteen instances of the published 7B coefficients, episodes of about eight turns, contexts of some thousand
tokens. `price` is StaleFlow: home counts as much as the prefill that it saves. `always` waits for a place at
home; `never` does not know of homes. Episodes per second over all steps but the first; with equal seeds all
have the same episodes, which wait equally long. Ratios are means over the seeds, each of two runs of one
seed, with the 95 % interval of the mean. `left`: of 1,000 turns that have a home, how many the price sends
elsewhere. Where it is 0, `always` decides in every situation as the price does: it is the same run, and is
not made again.

The bound is that of benchmarks/agent_bound.py, with waits in it, for the very episodes that the run trained.
Expected is what controller/cli/planning/filling.py has: the same with instances as crowded as they are, and
with what is prefilled again after each pull.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import exp
from statistics import fmean

from benchmarks.agent_bound import Watched, share_of_bound
from controller.cli.planning.filling import filling
from controller.config.models import Config
from controller.simulation.host import Outcome
from controller.simulation.intervals import paired_ratio, with_interval
from strategies.routing import ROUTINGS, Routing, by_marginal_gain
from strategies.views import InstanceView, Settings, WorkView

GROUP_SIZE, BATCH_GROUPS, INSTANCES = 8, 8, 16
TURNS, TURNS_SIGMA, GIVEN, SIGMA, MAX_TURNS = 8, 0.4, 256, 0.5, 16
TURN_S = 1.5  # that a turn takes on an instance: what the shares of waiting are made from
PROMPT, MEDIAN, LONGEST = 512, 100, 512
SKIPPED = 2  # first steps
WITHIN = 0.01  # of the better one of the two simpler rules
OF_BOUND = 0.9  # that is wanted where ASKED of the time is waited
ASKED = 0.6
WAYS = {
    "price": {},
    "always": {"routing": "benchmarks.agent_homes:ALWAYS"},
    "never": {"affinity": False},
}


def always_home(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The home of the work, or nothing until it has room there; `marginal_gain` where it has none."""
    home = [instance for instance in instances if instance.id == work.home]
    return by_marginal_gain(work, home or instances, settings)


ALWAYS = Routing(always_home, ROUTINGS["marginal_gain"].order)
"""It is shown the same instances as the price."""


def wait_s(share: float) -> float:
    """Median wait for which an episode spends this share of its time in its environment."""
    return TURN_S * share / (1 - share) / exp(SIGMA**2 / 2)


def config_for(share: float, max_staleness: int, steps: int, way: str, seed: int = 0) -> Config:
    """A run of one cell. `seed`: how many turns its episodes have, and what is given in them."""
    at_once = (max_staleness + 2) * BATCH_GROUPS * GROUP_SIZE
    return Config.model_validate({
        "run": {"steps": steps, "seed": seed},
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


def episodes_per_s(outcome: Outcome, skipped: int = SKIPPED) -> float:
    """Over all steps but the first."""
    starts = outcome.starts[skipped:]
    trained = sum(start.trajectories for start in starts[1:])
    return trained / (starts[-1].at_s - starts[0].at_s)


def prefilled_per_token(outcome: Outcome) -> float:
    """Tokens that engines prefilled, for each that they sampled."""
    return outcome.starts[-1].totals.prefilled / outcome.starts[-1].totals.decoded


@dataclass(slots=True)
class Cell:
    """One share of waiting under one bound."""

    share: float
    max_staleness: int
    expected: float  # episodes per second
    speeds: dict[str, list[float]] = field(default_factory=dict)  # way -> episodes per second, by seed
    prefilled: dict[str, list[float]] = field(default_factory=dict)  # way -> tokens for each sampled one
    left: list[float] = field(default_factory=list)  # share of the turns with a home, by seed
    of_bound: list[float] = field(default_factory=list)  # that the price reaches, by seed

    def ratios(self, other: str) -> list[float]:
        """Of the price to another way, by seed."""
        return paired_ratio(self.speeds["price"], self.speeds[other])

    @property
    def is_won(self) -> bool:
        """Whether the price is at least as fast as both others."""
        return all(fmean(self.ratios(other)) >= 1 - WITHIN for other in ("always", "never"))


class Departures:
    """How many turns that have a home the price sends elsewhere, in one run."""

    def __init__(self, simulation: Watched) -> None:
        self.turns = self.left = 0
        state = simulation.core.state
        self._price = state.strategies.route.choose
        state.strategies = replace(
            state.strategies, route=Routing(self._choose, state.strategies.route.order)
        )

    def _choose(self, work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
        chosen = self._price(work, instances, settings)
        if any(instance.id == work.home for instance in instances):
            self.turns += 1
            self.left += chosen != always_home(work, instances, settings)
        return chosen


def run(config: Config, seed: int, steps: int) -> tuple[Outcome, Departures, float]:
    """A run to its end, how many turns left their homes in it, and its last steps' share of the bound."""
    simulation = Watched(config, seed)
    departures = Departures(simulation)
    outcome = simulation.run()
    assert outcome.is_success, outcome.reason
    first = config.run.steps - steps
    return outcome, departures, share_of_bound(config, simulation.batches, first)


def measured(steps: int, seeds: int, place: tuple[float, int]) -> Cell:
    """The runs of one cell."""
    first = 2 * place[1] + 1  # until then the cap of groups grows, and instances are not full
    make = partial(config_for, *place, first + 1 + steps)
    expected = filling(make("price"))
    assert expected is not None
    cell = Cell(*place, expected.episodes_per_s)
    for seed in range(seeds):
        found: dict[str, Outcome] = {}
        found["price"], departures, share = run(make("price", seed), seed, steps)
        cell.of_bound.append(share)
        cell.left.append(departures.left / max(1, departures.turns))
        found["always"] = run(make("always", seed), seed, steps)[0] if departures.left else found["price"]
        found["never"] = run(make("never", seed), seed, steps)[0]
        for way, outcome in found.items():
            cell.speeds.setdefault(way, []).append(episodes_per_s(outcome, first))
            cell.prefilled.setdefault(way, []).append(prefilled_per_token(outcome))
    return cell


def told(cells: Iterator[Cell]) -> Iterator[str]:
    """A row for each cell, and in how many the price is at least as fast."""
    yield (
        f"{'waiting':>7}{'bound':>6}{'price/s':>14}{'/ always':>15}{'/ never':>15}{'of bound':>15}"
        f"{'of expected':>12}{'left':>6}   prefill/token"
    )
    seen: list[Cell] = []
    for cell in cells:
        seen.append(cell)
        prefills = " ".join(f"{fmean(cell.prefilled[way]):.2f}" for way in WAYS)
        ratios = "".join(f"{with_interval(cell.ratios(other), '.3f'):>15}" for other in ("always", "never"))
        yield (
            f"{cell.share:7.1f}{cell.max_staleness:6}{with_interval(cell.speeds['price']):>14}{ratios}"
            f"{with_interval(cell.of_bound, '.3f'):>15}{fmean(cell.speeds['price']) / cell.expected:12.2f}"
            f"{1000 * fmean(cell.left):6.1f}   {prefills}"
        )
    wins = sum(cell.is_won for cell in seen)
    yield f"At least as fast as both, within {WITHIN:.0%}: {wins} of {len(seen)} cells."
    asked = [cell for cell in seen if cell.share == ASKED]
    near = sum(fmean(cell.of_bound) >= OF_BOUND for cell in asked)
    if asked:
        yield f"At least {OF_BOUND:.0%} of the bound, waiting {ASKED}: {near} of {len(asked)} cells."


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waits", type=float, nargs="+", default=[0.0, 0.3, 0.6, 0.8])
    parser.add_argument("--bounds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of each run, behind the first ones")
    parser.add_argument("--processes", type=int, default=1, help="cells at a time")
    chosen = parser.parse_args()
    places = list(product(chosen.waits, chosen.bounds))
    with ProcessPoolExecutor(chosen.processes) as pool:
        for line in told(pool.map(partial(measured, chosen.steps, chosen.seeds), places)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
