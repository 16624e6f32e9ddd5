"""What batches of similar length gain in virtual time, in the first epoch and in later ones.

Invariant: the production core and the predictor that ships, in the simulation; sides of a ratio have the
same seed, hence the same prompts and lengths. Throughput is of trained tokens, over whole epochs of two
windows each, so that both sides train the very same prompts. Every rule but AReaL's keeps the bound, or the
benchmark fails; `late` is the share of trained trajectories that are older. The first of `--rules` is what
the others are compared with: `--rules areal "similar, streaming"` sets a strict bound against none.
`at most` is the upper bound with batches as the rule has them, over that with mixed whole batches.
"""

import argparse
import platform
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import Any, NamedTuple

from controller.config.models import Config
from controller.simulation import Simulation
from controller.simulation.bounds import throughput_bound
from controller.simulation.intervals import paired_ratio, with_interval
from controller.simulation.records import window
from controller.simulation.similar_bound import similar_bound

RULES: dict[str, dict[str, Any]] = {  # of `staleness`, and streaming
    "greedy": {"strategy": "greedy"},
    "staleflow": {},
    "shuffled": {"sampler": "similar_length_shuffled"},
    "shuffled, streaming": {"sampler": "similar_length_shuffled", "streaming": True},
    "similar": {"sampler": "similar_length"},
    "similar, streaming": {"sampler": "similar_length", "streaming": True},
    "streaming": {"streaming": True},
    "areal": {"strategy": "areal"},
}
UNBOUND = ("areal",)  # promise no bound
SEEN = 8  # earlier responses to each prompt, in the second epoch
EPOCH_STEPS = 16  # two windows of 8 batches
SHAPES = {"wide": (8, 20_000, 2_000), "single": (4, 16_384, 3_000)}
"""Instances, longest response, its median before it is cut; one step trains 16 prompts x 8 responses."""


class Figures(NamedTuple):
    """Of one run."""

    first: float  # tokens/s in the first epoch
    later: float  # and after it
    staleness: float
    late: float  # share of trained trajectories over the bound
    log_error: float | None  # of prompts that were met before
    bias: float | None  # of trained lengths against generated ones, over all windows


def settings(shape: str, bound: int, correlation: float, epochs: int, **rules: Any) -> Config:
    """A sixteenth of a cluster of 128 instances with 2,048 responses a step, or an eighth of a fuller one."""
    instances, cap, median = SHAPES[shape]
    streaming = rules.pop("streaming", False)
    return Config.model_validate(
        {
            "run": {"steps": epochs * EPOCH_STEPS + 1},
            "rollout": {
                "instances": instances, "group_size": 8, "max_response_tokens": cap, "max_running": 4096,
            },
            "trainer": {"batch_groups": 16, "streaming": streaming},
            "staleness": {"max_staleness": bound, "keep_kv": True, "decide_s": 2.0, **rules},
            "controller": {"lease_s": 1e7, "beat_s": 1e6},
            "simulation": {
                "workload": {
                    "kind": "lognormal", "sigma": 1.3, "median_tokens": median,
                    "group_correlation": correlation, "prompts": 16 * EPOCH_STEPS,
                },
                "train_token_s": 2.3e-5 * 16 / instances,
                "report_s": 10.0,
            },
        }
    )  # fmt: skip


def measure(job: tuple[str, int, float, int, str, int]) -> Figures:
    """The figures of one run."""
    shape, bound, correlation, epochs, name, seed = job
    config = settings(shape, bound, correlation, epochs, **RULES[name])
    outcome = Simulation(config, seed=seed, with_digest=False).run(max_events=50_000_000)
    assert outcome.is_success, outcome.reason
    first = window(outcome.starts[: EPOCH_STEPS + 1], max_staleness=bound, skip=0)
    later = window(outcome.starts, max_staleness=bound, skip=EPOCH_STEPS)
    assert first is not None
    assert later is not None
    assert name in UNBOUND or not first.violations + later.violations, "the bound was broken"
    late = later.violations / sum(later.staleness.values())
    told: dict[str, Any] = outcome.summary
    error, bias = told.get("sampler/log_error"), told.get("sampler/length_bias")
    return Figures(first.tokens_per_s, later.tokens_per_s, later.staleness_mean, late, error, bias)


def at_most(shape: str, bound: int, correlation: float, name: str) -> str:
    """The upper bound of a rule in a steady state, over that of mixed whole batches; `-` without a bound."""
    if name in UNBOUND:
        return "-"
    config = settings(shape, bound, correlation, 2, **RULES[name])
    mixed = throughput_bound(settings(shape, bound, correlation, 2))
    is_mixed = config.staleness.sampler == "in_order"
    return f"{(throughput_bound(config) if is_mixed else similar_bound(config, seen=SEEN)) / mixed:.2f}"


def main() -> None:
    """Print a row per cluster, bound, correlation and rule."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--seeds", type=int, default=6)
    arguments.add_argument("--bounds", type=int, nargs="+", default=[1, 3])
    arguments.add_argument("--correlations", type=float, nargs="+", default=[0.8, 0.5])
    arguments.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    arguments.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    arguments.add_argument("--processes", type=int, default=1)
    options = arguments.parse_args()
    seeds = range(1, options.seeds + 1)
    print(f"{platform.machine()}, Python {platform.python_version()}, virtual time, {options.seeds} seeds")
    ratio = f"x {options.rules[0]}"
    print(f"| cluster | bound | correlation | rule | epoch 1, tokens/s | {ratio} | later, tokens/s "
          f"| {ratio} | staleness | late | log error | bias | at most |\n" + "|---" * 13 + "|")  # fmt: skip
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as pool:
        for shape, bound, correlation in product(options.shapes, options.bounds, options.correlations):
            base: list[Figures] = []
            for name in options.rules:
                jobs = [(shape, bound, correlation, options.epochs, name, seed) for seed in seeds]
                found = list(pool.map(measure, jobs))
                base = base or found
                names, most = (
                    (shape, str(bound), f"{correlation:g}", name),
                    at_most(shape, bound, correlation, name),
                )
                print(row(names, found, base, most), flush=True)


def row(names: tuple[str, ...], found: list[Figures], base: list[Figures], most: str) -> str:
    """One line of the table; `most` is its last cell."""
    cells = list(names)
    for field in ("first", "later"):
        own, other = ([getattr(one, field) for one in each] for each in (found, base))
        cells += [f"{fmean(own):,.0f}", with_interval(paired_ratio(own, other))]
    cells.append(f"{fmean(one.staleness for one in found):.2f}")
    cells.append(f"{fmean(one.late for one in found):.0%}")
    for field, form in (("log_error", ".2f"), ("bias", "+.1%")):
        known = [value for one in found if (value := getattr(one, field)) is not None]
        cells.append(format(fmean(known), form) if known else "-")
    return f"| {' | '.join([*cells, most])} |"


if __name__ == "__main__":
    main()
