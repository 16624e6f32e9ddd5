"""A slice of benchmarks/agent_faults.py: environments, workers of every role and the controller die and
hang."""

from collections import Counter

import pytest

from controller.simulation import Faults, Simulation
from tests.simulation.test_simulated_runs import config
from tests.support.agent_fault_sweep import agentic, one
from tests.support.fault_host import Plagues
from tests.support.fault_sweep import FAULTS
from tests.support.survivors import SurvivingSimulation

FEW = 12
HAPPENS = (
    "ending/stop", "ending/turns", "ending/timeout", "episodes/replayed", "episodes/diverged",
    "episodes/failed_environment", "episodes/timeouts", "controller_deaths", "trainer_deaths",
)  # fmt: skip


def sweep(first: int, count: int) -> Counter[str]:
    """Raises: AssertionError with the failures of some seeds."""
    verdicts = [one(seed) for seed in range(first, first + count)]
    assert [verdict.failure for verdict in verdicts if verdict.failure] == []
    return sum((verdict.counts for verdict in verdicts), Counter())


@pytest.mark.parametrize("first", range(0, FEW, 4))
def test_no_fault_loses_a_prompt_of_an_agent_or_trains_one_twice(first):
    counts = sweep(first, 4)
    assert counts["ending/stop"]


def test_a_conversation_that_has_no_room_to_begin_takes_no_number():
    assert one(276).failure == "", "the simulated worker left a number out, and was closed for it"


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_seeds_of_agents(first):
    counts = sweep(first, 100)
    assert [what for what in HAPPENS if not counts[what]] == []


def test_an_episode_that_wants_more_turns_than_it_may_have_ends_by_that_limit():
    settings = agentic(config(steps=2, instances=2), {"turns": 4, "turns_sigma": 0.5}, max_turns=3)
    counts = Simulation(settings, seed=1).run().summary["counts"]
    assert counts["ending/turns"] > counts["ending/stop"] > 0


WAITING = {"wait_s": 1.0, "sigma": 1.0, "start_s": 0.5}


class Counted(SurvivingSimulation):
    """No rollout worker is lost, so whatever is sampled again is the core's fault."""


@pytest.mark.parametrize(("seed", "saved_bytes"), [(0, 0), (1, 1000), (2, 0)])
def test_no_token_is_sampled_twice_when_agent_workers_and_controllers_die(seed, saved_bytes):
    environment = WAITING | {"saved_bytes": saved_bytes}
    settings = agentic(config(steps=4, batch_groups=3, group_size=3, instances=2), environment, workers=2)
    patient = settings.controller.model_copy(update={"respawns": 500})
    simulation = Counted(
        settings.model_copy(update={"controller": patient}), seed=seed, prompts=12, gone_share=0.0,
        plagues=Plagues(controller_deaths=0.003), faults=Faults(agent_kills=0.5, hang_share=0.0),
    )  # fmt: skip
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    counts = outcome.summary["counts"]
    assert counts["episodes/replayed"] > 3
    assert simulation.counts["controller_deaths"]
    assert counts.get("episodes/diverged", 0) == 0
    assert bool(counts.get("episodes/restored")) == bool(saved_bytes)
    assert outcome.summary["tokens/lost"] == 0
    assert sum(simulation.again) == 0


def test_a_run_of_agents_is_the_same_each_time_and_lives_by_the_bound():
    settings = agentic(config(max_staleness=1, steps=6, instances=2), WAITING | {"failure_rate": 0.02})
    outcomes = [Simulation(settings, seed=1, check_every=1).run() for _ in range(2)]
    assert outcomes[0].digest == outcomes[1].digest
    assert outcomes[0].is_success
    summary = outcomes[0].summary
    assert summary["staleness/violations"] == 0
    assert summary["tokens/given"] > 0
    spent = sum(summary[f"tokens/{name}"] for name in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent


def test_faults_of_agents_leave_runs_without_one_alone():
    assert FAULTS.agent_kills == 0
    assert "tokens/given" not in Simulation(config(steps=2), seed=0).run().summary


def test_an_environment_that_hangs_costs_its_time_and_the_run_goes_on():
    settings = agentic(
        config(steps=4), WAITING | {"hang_rate": 0.03}, turn_timeout_s=5.0, start_timeout_s=5.0
    )
    outcome = Simulation(settings, seed=0, check_every=1).run(patience_s=60)
    assert outcome.is_success
    assert outcome.summary["counts"]["episodes/timeouts"]


def test_an_environment_that_reads_the_clock_goes_on_without_replay():
    environment = WAITING | {"divergence_rate": 1.0}
    settings = agentic(config(steps=4, batch_groups=3, group_size=3, instances=2), environment, workers=2)
    patient = settings.controller.model_copy(update={"respawns": 500})
    simulation = Simulation(
        settings.model_copy(update={"controller": patient}),
        seed=3,
        faults=Faults(agent_kills=0.15),
        check_every=1,
    )
    outcome = simulation.run(patience_s=500)
    assert outcome.is_success, outcome.reason
    summary = outcome.summary
    assert not simulation.core.state.beginnings.is_replaying
    assert any("asked something else when they were run again" in text for text in outcome.warnings)
    assert summary["counts"]["episodes/diverged"] >= 3
    assert summary["tokens/lost"] > 0
    spent = sum(summary[f"tokens/{name}"] for name in ("trained", "aborted", "filtered", "lost", "in_flight"))
    assert summary["tokens/generated"] == spent
