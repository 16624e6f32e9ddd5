"""What training ahead of the batch gains in virtual time, where steps wait for long responses.

Invariant: the production core in the simulation; both sides of a ratio have the same seed, hence the same
prompts and lengths. Throughput is that of trained tokens from the first step's start to the last one's.
"""

import argparse
import platform
from itertools import product

from controller.config.models import Config
from controller.simulation import Simulation
from controller.simulation.records import Window, window

WORKLOADS = {
    "lognormal": {"kind": "lognormal"},
    "power law": {"kind": "power_law", "alpha": 1.2},
}


def settings(
    workload: str, *, max_staleness: int, streaming: bool, train_token_s: float, steps: int
) -> Config:
    """Two instances, 16 groups of 4 responses of up to 4,096 tokens."""
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 4096, "max_running": 64},
            "trainer": {"batch_groups": 16, "streaming": streaming},
            "staleness": {"max_staleness": max_staleness},
            "simulation": {"workload": WORKLOADS[workload], "train_token_s": train_token_s},
        }
    )


def measure(config: Config, seed: int) -> Window:
    """The figures of one run."""
    outcome = Simulation(config, seed=seed, with_digest=False).run()
    assert outcome.is_success, outcome.reason
    found = window(outcome.starts, max_staleness=config.staleness.max_staleness, skip=0)
    assert found is not None, "too few steps"
    assert not found.violations, "the bound was broken"
    return found


def main() -> None:
    """Print a row per workload, bound and speed of the trainer."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=16)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--train-token-s", type=float, nargs="+", default=[1e-4, 3e-4])
    options = arguments.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, virtual time, seed {options.seed}")
    print("workload   bound  s/token  tokens/s off  on      ratio  trainer idle off  on    staleness off  on")
    for workload, bound, cost in product(WORKLOADS, options.bounds, options.train_token_s):
        off, on = (
            measure(
                settings(
                    workload, max_staleness=bound, streaming=is_on, train_token_s=cost, steps=options.steps
                ),
                options.seed,
            )
            for is_on in (False, True)
        )
        print(
            f"{workload:<10} {bound:>5}  {cost:<7g}  {off.tokens_per_s:<12.0f}  {on.tokens_per_s:<6.0f}  "
            f"{on.tokens_per_s / off.tokens_per_s:<5.3f}  {off.trainer_idle:<16.2f}  {on.trainer_idle:<4.2f}"
            f"  {off.staleness_mean:<13.2f}  {on.staleness_mean:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
