"""How many tokens are sampled twice because something died: the production core and sessions in virtual time.

Invariants: one kind of fault a run, several seeds each; a token counts as sampled again if a worker is asked
for it after any worker has sampled it, told or not; a worker that dies takes with it what it has not told.
"""

import argparse
import platform
from dataclasses import dataclass

from controller.config.models import Config
from controller.simulation import Faults
from tests.simulation.test_simulated_runs import config
from tests.support.fault_host import Plagues, trained_once
from tests.support.survivors import SurvivingSimulation

STEPS, BATCH = 12, 4
NO_PLAGUES, NO_FAULTS = Plagues(), Faults()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault, and on what instances."""

    name: str
    plagues: Plagues = NO_PLAGUES
    faults: Faults = NO_FAULTS
    remote: int = 3  # instances that no controller has started; else as many local ones
    gone_share: float = 0.0


KINDS = (
    Kind("nothing"),
    Kind("controller, remote instances", Plagues(controller_deaths=0.004)),
    Kind("controller, they never come back", Plagues(controller_deaths=0.004), gone_share=1.0),
    Kind("controller, local instances", Plagues(controller_deaths=0.004), remote=0),
    Kind("controller, all on its host too", Plagues(controller_deaths=0.004), remote=0, gone_share=1.0),
    Kind("rollout worker", faults=Faults(rollout_kills=0.1, hang_share=0.0), remote=0),
    Kind("trainer", Plagues(trainer_deaths=0.008), remote=0),
    Kind("reward worker", faults=Faults(reward_kills=0.2, hang_share=0.0), remote=0),
)


def settings(kind: Kind) -> Config:
    """A small run on three instances."""
    made = config(steps=STEPS, batch_groups=BATCH, instances=0 if kind.remote else 3)
    patient = made.controller.model_copy(update={"respawns": 500})
    return made.model_copy(update={"controller": patient})


class Counting(SurvivingSimulation):
    """Counts what was killed by faults of workers, which plagues do not."""

    deaths = 0

    def _kill(self, process) -> None:
        self.deaths += process.is_alive
        super()._kill(process)


def main() -> None:
    """Print a row per kind of fault."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=10)
    options = arguments.parse_args()
    print(f"{platform.machine()}, virtual time: figures do not depend on the machine; {options.seeds} seeds")
    for kind in KINDS:
        deaths = again = generated = 0
        for seed in range(options.seeds):
            made = settings(kind)
            simulation = Counting(
                made, seed=seed, prompts=STEPS * BATCH, plagues=kind.plagues, faults=kind.faults,
                remote=kind.remote, gone_share=kind.gone_share, check_every=10,
            )  # fmt: skip
            outcome = simulation.run_through()
            assert trained_once(simulation, steps=STEPS) == list(range(STEPS * BATCH))
            deaths += simulation.counts["controller_deaths"] or simulation.deaths
            again += sum(simulation.again)
            generated += outcome.summary["tokens/generated"]  # type: ignore[operator]
        share = f"{again / generated:.2%} of {generated:,}"
        per_death = f"{again / deaths:.1f} a death" if deaths else ""
        print(f"{kind.name:34} {deaths:4} deaths, {again:6,} tokens again ({share}) {per_death}", flush=True)


if __name__ == "__main__":
    main()
