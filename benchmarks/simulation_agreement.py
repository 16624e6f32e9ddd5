"""Our simulator beside published figures of another one: `python benchmarks/simulation_agreement.py`.

Single-response groups, 16 instances, 512 responses a step, 41 versions, figures of versions 10 to 40. Bound 0
is synchronous, with versions that are out when they are. The others, earliest deadline first and AReaL's
capacity, run on that simulator's terms: new weights are visible when a train step begins and are swapped
under what runs without stopping it, the seconds of a transfer are the trainer's alone, an instance takes a
response only if the KV of all that it has fits at their final lengths, which nobody can know, and the lengths
are the very draw. Exit code 1 if a cell is off by more than 5 %.

`--terms transfer` leaves the lengths and the KV out: lengths are drawn here, and KV grows token by token.
`--terms ours` has the seconds of a transfer in the instance, which stands still, as well.

Source: DryRun-RL, the simulator by the authors of StaleFlow (arXiv 2601.12784), and a study that ran it.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["STALEFLOW_COMPILED"] = "0"  # its terms replace a method of the core, which a compiled one refuses

from controller.config.models import Config  # noqa: E402
from controller.simulation import Simulation, window  # noqa: E402
from tests.support.published_study import (  # noqa: E402
    AREAL,
    CAPS,
    PUBLISHED,
    SKIP,
    SYNC_S,
    make_config,
    study_simulation,
)

TOLERANCE = 0.05
TERMS = ("study", "transfer", "ours")


def simulation_on(terms: str, kind: str, bound: int, *, rule: str, seed: int) -> Simulation:
    """One cell on that simulator's terms, on those but for lengths and KV, or on ours."""
    config = make_config(kind, bound, strategy=rule)
    if terms == "study":
        return study_simulation(config, seed=seed, is_reserved=bound > 0)
    if terms == "ours" and bound:
        tree = config.model_dump()
        tree["simulation"] |= {"pull_s": SYNC_S, "train_base_s": config.simulation.train_base_s - SYNC_S}
        config = Config.model_validate(tree)
    return Simulation(config, seed=seed, with_digest=False)


def main() -> int:
    """The exit code; prints one line for each cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(CAPS))
    parser.add_argument("--bounds", default="0,1,2,3")
    parser.add_argument("--rules", default="greedy,areal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--terms", choices=TERMS, default="study")
    options = parser.parse_args()
    differences = []
    for kind in options.workloads.split(","):
        for bound in map(int, options.bounds.split(",")):
            for name, published in (("greedy", PUBLISHED[kind]), ("areal", (0.0, *AREAL[kind]))):
                if not published[bound] or name not in options.rules.split(","):
                    continue
                simulation = simulation_on(options.terms, kind, bound, rule=name, seed=options.seed)
                figures = window(simulation.run().starts, max_staleness=bound, skip=SKIP)
                assert figures is not None
                rate = figures.trajectories_per_s
                differences.append(rate / published[bound] - 1)
                said = f"{rate:5.2f}/s, published {published[bound]:5.2f}/s, {differences[-1]:+6.1%}"
                print(f"{kind:10} bound {bound} {name:7} {said}", flush=True)
    return int(any(abs(one) > TOLERANCE for one in differences))


if __name__ == "__main__":
    sys.exit(main())
