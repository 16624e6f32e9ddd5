"""The simulator beside the published figures of another one, and under faults that only delay."""

import pytest

from controller.simulation import Faults, Simulation, window
from tests.simulation.test_simulated_runs import config
from tests.support.published_study import AREAL, PUBLISHED, make_config, study_simulation
from tests.support.sampled_seeds import sampled_seeds


@pytest.mark.parametrize("kind", ["bimodal", pytest.param("uniform", marks=pytest.mark.thorough)])
def test_a_synchronous_run_is_as_fast_as_published(kind):
    simulation = Simulation(make_config(kind, 0, versions=24), seed=1, with_digest=False)
    figures = window(simulation.run().starts, max_staleness=0, skip=4)
    assert figures is not None
    assert figures.trajectories_per_s == pytest.approx(PUBLISHED[kind][0], rel=0.05)


@pytest.mark.parametrize(
    ("kind", "strategy", "published"),
    [
        ("bimodal", "greedy", PUBLISHED["bimodal"][3]),
        pytest.param("uniform", "areal", AREAL["uniform"][2], marks=pytest.mark.thorough),
    ],
)
def test_on_the_terms_of_the_other_simulator_ours_says_the_same(kind, strategy, published):
    simulation = study_simulation(make_config(kind, 3, strategy=strategy), seed=1, is_reserved=True)
    figures = window(simulation.run().starts, max_staleness=3, skip=10)
    assert figures is not None
    assert figures.trajectories_per_s == pytest.approx(published, rel=0.03)
    assert figures.reprefilled_tokens == 0


@pytest.mark.parametrize("seed", sampled_seeds(3, 6))
def test_slow_workers_slow_links_and_late_messages_only_cost_time(seed):
    faults = Faults(stragglers=0.3, straggler_s=5.0, slow_links=0.1, late_share=0.05, late_s=0.5)
    slow = Simulation(config(), seed=seed, faults=faults, prompts=48, check_every=1).run()
    quick = Simulation(config(), seed=seed, prompts=48).run()
    assert slow.is_success, slow.reason
    assert sorted(group for batch in slow.trained for group in batch) == list(range(48))
    assert slow.summary["staleness/violations"] == 0
    assert slow.summary["time_s"] > quick.summary["time_s"]
