"""A simulated run whose core is replaced by its own image now and then is the run that it would have been."""

import random

import pytest

from controller.config.strategies import load_strategies
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.simulation import Faults, Simulation
from strategies.presets import PRESETS
from tests.simulation.test_simulated_runs import config
from tests.support.random_rules import random_rules

FAULTS = Faults(rollout_kills=0.1, reward_kills=0.05, late_share=0.02, late_s=0.3)


class Forgetful(Simulation):
    """Its core is replaced by its own image before some events, drawn by chance."""

    def __init__(self, settings, *, seed: int, share: float) -> None:
        super().__init__(settings, seed=seed, faults=FAULTS, check_every=1)
        self.settings, self.dice, self.share = settings, random.Random(seed), share
        self.freezer, self.images = Freezer(), []

    def _deliver(self, event) -> None:
        if self.dice.random() < self.share:
            self.images.append(self.freezer.freeze(self.core))
            self.core = thaw(self.images[-1], load_strategies(self.settings))
        super()._deliver(event)


def rules(case: str | int) -> dict:
    if isinstance(case, int):
        return random_rules(random.Random(case))
    return {"strategy": case, "max_staleness": {"sync": 0, "one_step": 1}.get(case, 2)}


@pytest.mark.parametrize("case", [*PRESETS, *range(6)])
def test_a_thawed_core_goes_on_as_if_nothing_had_happened(case):
    settings = config(steps=6, **rules(case))
    undisturbed = Simulation(settings, seed=7, faults=FAULTS).run(max_events=30_000)
    simulation = Forgetful(settings, seed=7, share=10 / undisturbed.events)
    assert simulation.run(max_events=30_000).digest == undisturbed.digest
    assert len(simulation.images) > 3


class Twinned(Simulation):
    """From an event on, a core thawed from its own takes in the same events; only its own is looked at."""

    def __init__(self, settings, *, seed: int, thawed_at: int) -> None:
        super().__init__(settings, seed=seed, faults=FAULTS, check_every=1)
        self.settings, self.thawed_at, self.twin, self.compared = settings, thawed_at, None, 0

    def _deliver(self, event) -> None:
        if self.twin is None and self.outcome.events >= self.thawed_at:
            self.twin = thaw(Freezer().freeze(self.core), load_strategies(self.settings))
        super()._deliver(event)
        self.core.snapshot()
        if self.twin is not None and self.compared < 150:
            self.twin.step(self._now, event)
            self.compared += 1
            assert Freezer().freeze(self.twin) == Freezer().freeze(self.core), f"after {event!r:.100}"


@pytest.mark.parametrize("case", ["one_step", "staleflow", 3])
def test_a_core_that_is_looked_at_has_the_image_of_one_that_is_not(case):
    simulation = Twinned(config(steps=6, **rules(case)), seed=7, thawed_at=60)
    simulation.run(max_events=30_000)
    assert simulation.compared == 150
