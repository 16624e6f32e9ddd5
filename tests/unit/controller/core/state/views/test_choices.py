"""Instances are found the same way whether a routing says what they are worth, or is shown them all."""

from dataclasses import replace

import pytest

from controller.config.models import Config
from controller.simulation import Faults, Simulation
from strategies.routing import Routing

FAULTS = Faults(rollout_kills=0.1, stragglers=0.1, straggler_s=5.0, slow_links=0.05, late_share=0.02)


def config(**staleness) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": 6},
            "rollout": {"instances": 5, "group_size": 8, "max_response_tokens": 512, "max_running": 12},
            "trainer": {"batch_groups": 6},
            "staleness": {"max_staleness": 2, "decide_s": 0.3, **staleness},
            "simulation": {"engine": {"kv_blocks": 400, "speeds": (1.0, 1.0, 0.5)}},
            "controller": {"lease_s": 5.0, "beat_s": 0.5, "respawns": 50},
        }
    )


def digest(config: Config, seed: int, *, is_weighed: bool) -> str:
    simulation = Simulation(config, seed=seed, faults=FAULTS if seed % 2 else None)
    own = simulation.core.state.strategies
    assert own.route.weigh is not None
    if not is_weighed:
        route = Routing(own.route.choose, own.route.order)
        simulation.core.state.strategies = replace(own, route=route)
    return simulation.run(max_events=60_000).digest


@pytest.mark.parametrize("seed", range(6))
def test_weighing_and_asking_decide_alike(seed):
    rules = config(
        keep_kv=seed % 3 == 0, mu=0.3 if seed < 3 else 0.0, migration="benefit", in_flight_batches="all",
        length_prediction=seed != 4, spare_responses=seed % 2,
    )  # fmt: skip
    assert digest(rules, seed, is_weighed=True) == digest(rules, seed, is_weighed=False)
