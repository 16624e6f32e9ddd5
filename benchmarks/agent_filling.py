"""How busy rollout instances are with agents: as said beforehand, and as simulated; and caps of groups.

    python -m benchmarks.agent_filling                rows 64 to 512 in all, bound 2, share of waiting 0.6
    python -m benchmarks.agent_filling --caps              the adaptive cap beside fixed ones

The cluster and the episodes are those of benchmarks.agent_homes. Busy is the mean share of all rows in use
after the first steps.
"""

import argparse

from benchmarks.agent_homes import INSTANCES, SKIPPED, config_for, episodes_per_s
from controller.cli.planning.filling import filling
from controller.config.models import Config
from controller.simulation.host import Outcome, Simulation

ROWS = (4, 8, 12, 16, 32)  # of an instance
CAPS = ("auto", 1.5, 2.0, 2.5, 3.0)


def changed(config: Config, section: str, **values: object) -> Config:
    """The configuration with other values in one section."""
    sections = config.model_dump()
    sections[section].update(values)
    return Config.model_validate(sections)


def run(config: Config) -> Outcome:
    """A simulated run to its end."""
    outcome = Simulation(config, seed=0, with_digest=False).run()
    assert outcome.is_success, outcome.reason
    return outcome


def busy_share(outcome: Outcome, rows: int) -> float:
    """Mean share of the rows in use after the first steps."""
    load, begin = outcome.load, outcome.starts[SKIPPED].at_s
    used = [sum(running) for at_s, running in zip(load.times, load.running, strict=True) if at_s >= begin]
    return sum(used) / len(used) / rows


def main() -> None:
    """Print what was said and what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--caps", action="store_true")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--bound", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    config = config_for(chosen.share, chosen.bound, chosen.steps, "price")
    if chosen.caps:
        for cap in CAPS:
            speed = episodes_per_s(run(changed(config, "staleness", in_flight_batches=cap)))
            print(f"{cap!s:>5} batches in the system: {speed:.2f} episodes/s", flush=True)
        return
    for rows in ROWS:
        one = changed(config, "rollout", max_running=rows)
        said = filling(one)
        assert said is not None
        found = busy_share(run(one), INSTANCES * rows)
        print(f"{said.in_words()}\n    simulated: {found:.0%}", flush=True)


if __name__ == "__main__":
    main()
