"""Our simulator beside published figures of another one: `python benchmarks/simulation_agreement.py`.

Single-response groups, 16 instances, 512 responses a step, 41 versions, figures of versions 10 to 40. Bound 0
is synchronous, with versions that are out when they are; the others train the earliest deadline first, with
what that simulator assumes: new weights are visible when a train step begins, and swapped under what runs.
Exit code 1 if a cell is off by more than 5 %.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.config import Config  # noqa: E402
from controller.simulation import Simulation, window  # noqa: E402

INSTANCES, BATCH, VERSIONS, SKIP = 16, 512, 41, 10
TOLERANCE = 0.05
CAPS = {"lognormal": 16384, "bimodal": 24000, "power_law": 40960, "uniform": 8192}
PUBLISHED = {  # responses/s at bounds 0 (synchronous), 1, 2, 3
    "lognormal": (1.71, 3.46, 4.40, 4.97),
    "bimodal": (1.08, 2.02, 2.55, 3.12),
    "power_law": (0.76, 1.40, 1.90, 2.12),
    "uniform": (2.70, 5.91, 6.73, 7.18),
}


def make_config(kind: str, max_staleness: int, *, versions: int = VERSIONS) -> Config:
    """One cell; built without the rules between fields, which want groups of two or more."""
    return Config.model_validate(
        {
            "run": {"steps": versions},
            "rollout": {
                "instances": INSTANCES,
                "group_size": 1,
                "max_response_tokens": CAPS[kind],
                "max_running": 4096,
            },
            "trainer": {"batch_groups": BATCH},
            "staleness": {
                "max_staleness": max_staleness,
                "in_flight_batches": "all",
                "routing": "least_requests",
                "synchronization": "greedy",
                "migration": "none",
                "partial_rollout": False,
                "keep_kv": True,
            },
            "controller": {"lease_s": 1e7, "beat_s": 1e6},
            "simulation": {
                "workload": {"kind": kind},
                "publish": "early" if max_staleness else "honest",
                "report_s": 20.0,
            },
        }
    )


def main() -> int:
    """The exit code; prints one line for each cell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=",".join(CAPS))
    parser.add_argument("--bounds", default="0,1,2,3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="", help="write the figures to this JSON file")
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    for kind in options.workloads.split(","):
        for bound in map(int, options.bounds.split(",")):
            simulation = Simulation(make_config(kind, bound), seed=options.seed, with_digest=False)
            figures = window(simulation.run().starts, max_staleness=bound, skip=SKIP)
            assert figures is not None
            published = PUBLISHED[kind][bound]
            difference = figures.trajectories_per_s / published - 1
            found.append({"workload": kind, "max_staleness": bound, "published": published,
                          "ours": figures.trajectories_per_s, "difference": difference,
                          "mean_tokens": figures.mean_tokens, "staleness_mean": figures.staleness_mean,
                          "rollout_idle": figures.rollout_idle})  # fmt: skip
            words = f"{figures.trajectories_per_s:5.2f}/s, published {published:5.2f}/s, {difference:+6.1%}"
            print(
                f"{kind:10} bound {bound}: {words}, mean staleness {figures.staleness_mean:.2f}", flush=True
            )
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return int(any(abs(float(str(cell["difference"]))) > TOLERANCE for cell in found))


if __name__ == "__main__":
    sys.exit(main())
