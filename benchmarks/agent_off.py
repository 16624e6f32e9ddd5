"""What the code for agents costs a run without one: its share of the core's CPU time.

    python -m benchmarks.agent_off                            examples/quickstart.yaml in the simulator
    python -m benchmarks.agent_off --config FILE.yaml

Of `Core.step` under cProfile, whose own cost weighs on small functions most: the share is one at most.
"""

import argparse
import cProfile
import pstats
import time
from pathlib import Path

from controller.config.load import load_config
from controller.simulation.host import Simulation

OF_AGENTS = (
    "controller/core/state/agents/", "controller/core/decisions/supply/episode",
    "controller/core/effects/turns.py", "controller/core/effects/trials.py", "workers/agent/",
)  # fmt: skip


def main() -> None:
    """Print the share, and the functions that make it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("examples/quickstart.yaml"))
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()
    simulation = Simulation(load_config(chosen.config, [f"run.steps={chosen.steps}"]), with_digest=False)
    profile, step = cProfile.Profile(time.process_time), simulation.core.step
    simulation.decide = lambda now, event: profile.runcall(step, now, event)
    outcome = simulation.run()
    assert outcome.is_success, outcome.reason
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(profile).stats  # pyright: ignore[reportAttributeAccessIssue]  # typeshed has it not
    own = {key: row[2] for key, row in stats.items() if any(place in key[0] for place in OF_AGENTS)}
    total = sum(row[2] for row in stats.values())
    print(f"{sum(own.values()) / total:.2%} of {total:.2f} s in the core, in {len(own)} functions of agents")
    for (file, line, name), spent_s in sorted(own.items(), key=lambda pair: -pair[1])[:5]:
        print(f"  {spent_s / total:.2%} {Path(file).name}:{line} {name}, {stats[file, line, name][0]} calls")


if __name__ == "__main__":
    main()
