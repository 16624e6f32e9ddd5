"""Controllers and trainers die in virtual time between any two events; no prompt is lost or trained twice."""

import pytest
from test_simulated_runs import config

from controller.simulation import Faults
from tests.support.fault_host import FaultySimulation, Plagues, trained_once
from tests.support.sampled_seeds import sampled_seeds

PROMPTS, STEPS = 48, 12


def run(settings, *, seed: int, controller_deaths: float, trainer_deaths: float, **others: float):
    plagues = Plagues(controller_deaths=controller_deaths, trainer_deaths=trainer_deaths, **others)
    simulation = FaultySimulation(settings, seed=seed, prompts=PROMPTS, plagues=plagues)
    return simulation, simulation.run_through(faults_until=100_000)


@pytest.mark.parametrize("seed", sampled_seeds(4, 48))
def test_killed_controllers_and_trainers_lose_no_prompt_and_train_none_twice(seed):
    base = config(
        max_staleness=seed % 5,
        steps=STEPS,
        in_flight_batches="auto" if seed % 2 else "all",
        partial_rollout=seed % 3 != 0,
    )
    trainer = base.trainer.model_copy(update={"checkpoint_steps": (3, 0, 5, 1)[seed % 4]})
    limits = base.controller.model_copy(update={"respawns": 50})
    settings = base.model_copy(update={"trainer": trainer, "controller": limits})
    controllers, trainers = 0.012 * (seed % 3 > 0), 0.009 * (seed % 3 < 2)
    simulation, outcome = run(
        settings, seed=seed, controller_deaths=controllers, trainer_deaths=trainers,
        snapshots=0.02 * (seed % 2), wiped=0.5 * (seed % 4 > 1),
    )  # fmt: skip
    assert outcome.is_success, outcome.reason
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))
    assert [line["step"] for line in outcome.lines] == list(range(1, STEPS + 1))
    assert outcome.summary["staleness/violations"] == 0
    assert simulation.disk.checkpoint == STEPS
    assert len(simulation.disk.files) <= 3  # the newest, and what was still being retired at the end


@pytest.mark.parametrize("seed", sampled_seeds(2, 24))
def test_versions_that_are_gone_with_their_trainer_are_made_again_for_those_that_need_them(seed):
    base = config(steps=STEPS, max_staleness=seed % 3)
    trainer = base.trainer.model_copy(update={"checkpoint_steps": 4})
    limits = base.controller.model_copy(update={"respawns": 200})
    settings = base.model_copy(update={"trainer": trainer, "controller": limits})
    simulation = FaultySimulation(
        settings, seed=seed, prompts=PROMPTS, plagues=Plagues(trainer_deaths=0.02, wiped=1.0),
        faults=Faults(rollout_kills=0.5),
    )  # fmt: skip
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))


def test_the_sweep_really_kills():
    deaths = [0, 0]
    for seed in range(3):
        settings = config(steps=STEPS)
        simulation, _ = run(settings, seed=seed, controller_deaths=0.01, trainer_deaths=0.005)
        counts = simulation.counts
        deaths = [deaths[0] + counts["controller_deaths"], deaths[1] + counts["trainer_deaths"]]
    assert min(deaths) > 3, deaths
