"""How fast the simulator is: `python benchmarks/simulation_speed.py [--profile]`.

128 instances, 128 prompts x 16 responses a step, 50 steps, lengths up to 20,000 tokens, one core; wall time,
microseconds per event, and the share of the core and of the simulated workers in it.
"""

import argparse
import cProfile
import pstats
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from controller.config.models import Config  # noqa: E402
from controller.simulation import Simulation, window  # noqa: E402


def make_config(*, instances: int, prompts: int, steps: int, strategy: str) -> Config:
    """The cluster of the benchmark."""
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {
                "instances": instances,
                "group_size": 16,
                "max_response_tokens": 20_000,
                "max_running": 256,
            },
            "trainer": {"batch_groups": prompts},
            "staleness": {"max_staleness": 2, "strategy": strategy},
            "controller": {"lease_s": 1e7, "beat_s": 1e6},
            "simulation": {"train_token_s": 2.9e-6, "report_s": 30.0},
        }
    )


def main() -> int:
    """The exit code; prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--strategy", default="staleflow")
    parser.add_argument("--profile", action="store_true", help="print where the time goes (slower)")
    options = parser.parse_args()
    config = make_config(
        instances=options.instances, prompts=options.prompts, steps=options.steps, strategy=options.strategy
    )
    simulation = Simulation(config, seed=1, with_digest=False)
    in_core, step = [0.0], simulation.core.step

    def timed(now: float, event: object) -> list[object]:
        began = time.perf_counter()
        commands = step(now, event)  # type: ignore[arg-type]
        in_core[0] += time.perf_counter() - began
        return commands  # type: ignore[return-value]

    simulation.decide = timed  # type: ignore[assignment]
    profile = cProfile.Profile()
    began = time.perf_counter()
    outcome = profile.runcall(simulation.run) if options.profile else simulation.run()
    wall_s = time.perf_counter() - began
    figures = window(outcome.starts, max_staleness=2, skip=min(10, options.steps // 3))
    assert figures is not None
    core_us = in_core[0] / outcome.events * 1e6
    rest_us = (wall_s - in_core[0]) / outcome.happenings * 1e6
    print(f"{wall_s:.1f} s wall, {outcome.summary['time_s']} s virtual, {outcome.events} events for the core")
    share = in_core[0] / wall_s
    print(f"core {core_us:.1f} us per event ({share:.0%} of the time)")
    print(f"the rest {rest_us:.1f} us for each of {outcome.happenings} happenings")
    print(f"{figures.trajectories_per_s:.1f} trajectories/s, mean staleness {figures.staleness_mean:.2f}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
