"""Remote workers outlive controllers in virtual time; what they sampled meanwhile is not sampled again."""

import pytest
from test_simulated_runs import config

from tests.support.fault_host import Plagues, trained_once
from tests.support.fault_sweep import FAULTS, PLAGUES
from tests.support.sampled_seeds import sampled_seeds
from tests.support.survivors import SurvivingSimulation

STEPS, PROMPTS = 8, 32


@pytest.mark.parametrize("remote", [0, 3])
@pytest.mark.parametrize("seed", sampled_seeds(2, 12))
def test_no_token_is_sampled_twice_by_workers_that_come_back_or_leave_last_words(seed, remote):
    settings = config(steps=STEPS, instances=3 - remote)
    plagues = Plagues(controller_deaths=0.01, snapshots=0.05)
    simulation = SurvivingSimulation(
        settings, seed=seed, prompts=PROMPTS, plagues=plagues, remote=remote, gone_share=0.0
    )
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))
    assert sum(simulation.again) == 0
    assert outcome.summary["tokens/lost"] == 0
    assert outcome.summary["staleness/violations"] == 0


def test_the_sweep_really_leaves_something_in_hand():
    counts = {"killed": 0, "kept": 0, "again": 0}
    for seed in range(3):
        settings = config(steps=STEPS, instances=0)
        plagues = Plagues(controller_deaths=0.01)
        simulation = SurvivingSimulation(
            settings, seed=seed, prompts=PROMPTS, plagues=plagues, remote=3, gone_share=seed % 2
        )
        simulation.run_through()
        counts["killed"] += simulation.counts["controller_deaths"]
        counts["kept"] += simulation.core.state.accounts.counts["trajectories/kept"]
        counts["again"] += sum(simulation.again)  # of those that never came back
    assert min(counts.values()) > 5, counts


@pytest.mark.parametrize("seed", sampled_seeds(4, 24))
def test_every_prompt_is_trained_once_whatever_happens_to_workers_of_both_kinds(seed):
    base = config(max_staleness=seed % 4, steps=STEPS, instances=1, keep_kv=seed % 3 == 0)
    patient = base.controller.model_copy(update={"respawns": 500})
    simulation = SurvivingSimulation(
        base.model_copy(update={"controller": patient}), seed=seed, prompts=PROMPTS, plagues=PLAGUES,
        faults=FAULTS, remote=2, gone_share=0.3,
    )  # fmt: skip
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))
    assert outcome.summary["staleness/violations"] == 0
