"""Runs in which instances and trainer share one device, and everything dies, stops or loses its messages."""

import pytest

from controller.config.models import Config
from controller.simulation import Simulation
from tests.support.fault_sweep import FAULTS, GROUPS, PLAGUES, STEPS, check, may_drop, settings_of
from tests.support.survivors import SurvivingSimulation
from workers.simulated import SimulatedRollout, SimulatedTrainer


class OneDevice(SurvivingSimulation):
    """Looks after each event at who has weights on the device, whatever the core believes."""

    holders_seen: frozenset[str] = frozenset()

    def _deliver(self, event):
        super()._deliver(event)
        workers = [process.worker for process in self._processes.values() if process.is_alive]
        rollout = any(isinstance(one, SimulatedRollout) and one.has_device for one in workers)
        trainer = any(isinstance(one, SimulatedTrainer) and one.has_device for one in workers)
        assert not (rollout and trainer), "both sides have the device"
        self.holders_seen |= {name for name, has in (("rollout", rollout), ("trainer", trainer)) if has}


def colocated(seed):
    drawn = settings_of(seed)
    return drawn.model_copy(
        update={
            "placement": "colocated",
            "staleness": drawn.staleness.model_copy(update={"partial_rollout": True, "keep_kv": False}),
            "trainer": drawn.trainer.model_copy(update={"streaming": False}),
            "simulation": drawn.simulation.model_copy(update={"offload_s": 0.3}),
        }
    )


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 150))]
)
def test_the_sides_work_in_turn_and_nothing_is_lost_or_trained_twice(seed):
    settings = colocated(seed)
    simulation = OneDevice(
        settings, seed=seed, prompts=STEPS * GROUPS * (4 if may_drop(settings) else 1), remote=0,
        check_every=1, plagues=PLAGUES, faults=FAULTS,
    )  # fmt: skip
    check(simulation, settings)
    assert simulation.holders_seen == {"rollout", "trainer"}


def test_each_version_that_is_due_is_evaluated_before_the_trainer_has_the_device_again():
    held_out = {"x": {"path": "x.jsonl", "max_prompts": 10}}
    settings = Config.model_validate(
        {
            "placement": "colocated",
            "run": {"steps": 6},
            "rollout": {"instances": 2, "group_size": 2, "max_response_tokens": 200, "max_running": 8},
            "trainer": {"batch_groups": 4},
            "evaluation": {"every_steps": 1, "at_start": True, "exact": True, "data": held_out},
        }
    )
    outcome = Simulation(settings, check_every=1).run()
    assert outcome.is_success, outcome.reason
    assert [line["policy_version"] for line in outcome.evaluations] == list(range(7))
    assert not outcome.summary["counts"].get("evaluations/skipped")
