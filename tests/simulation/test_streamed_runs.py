"""Batches trained in parts, in virtual time: faster where steps wait for stragglers, and as safe."""

import pytest
from test_simulated_runs import config

from controller.config.models import Config
from controller.simulation import Simulation
from protocol.messages import TrainAhead
from tests.support.fault_host import FaultySimulation, Plagues, trained_once
from tests.support.sampled_seeds import sampled_seeds

PROMPTS, STEPS = 48, 12


def streamed(streaming=True, **rules) -> Config:
    """Steps take as long as their tokens, about as long as the longest response."""
    base = config(steps=STEPS, **rules)
    trainer = base.trainer.model_copy(update={"streaming": streaming, "checkpoint_steps": 3})
    simulation = base.simulation.model_copy(update={"train_base_s": 0.1, "train_token_s": 0.004})
    limits = base.controller.model_copy(update={"respawns": 50})
    sections = {"trainer": trainer, "simulation": simulation, "controller": limits}
    return base.model_copy(update=sections)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_training_hides_behind_stragglers_and_the_bound_holds(max_staleness):
    outcomes = [
        Simulation(streamed(streaming, max_staleness=max_staleness), seed=3, check_every=1).run()
        for streaming in (False, True)
    ]
    for outcome in outcomes:
        assert outcome.is_success, outcome.reason
        assert outcome.summary["staleness/violations"] == 0
        assert sum(len(start.groups) for start in outcome.starts) == PROMPTS
    before, after = (outcome.summary["time_s"] for outcome in outcomes)
    hidden = sum(line.get("time_s/ahead", 0.0) for line in outcomes[1].lines)
    if max_staleness == 0:  # every step waits for its stragglers
        assert after < 0.85 * before  # virtual seconds: exact
        assert hidden > 0.5 * sum(line["time_s/train"] for line in outcomes[1].lines)
    else:
        assert after <= before


class TrainerKilledAhead(FaultySimulation):
    """The trainer is killed while it trains what came ahead of a batch, once in each batch."""

    killed = -1

    def _hear(self, process, messages):
        super()._hear(process, messages)
        for message in messages:
            if isinstance(message, TrainAhead) and message.train_version > self.killed:
                self.killed = message.train_version
                self._kill(process)


@pytest.mark.parametrize("seed", sampled_seeds(2, 12))
def test_a_trainer_killed_amid_a_batch_is_fed_all_of_it_again(seed):
    simulation = TrainerKilledAhead(
        streamed(max_staleness=seed % 3), seed=seed, prompts=PROMPTS, plagues=Plagues(snapshots=0.05)
    )
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    assert simulation.killed >= (STEPS // 2 if seed % 3 == 0 else 0)
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))
    assert outcome.summary["staleness/violations"] == 0


@pytest.mark.parametrize("seed", sampled_seeds(2, 24))
def test_controllers_and_trainers_die_amid_batches_and_nothing_is_lost(seed):
    simulation = FaultySimulation(
        streamed(max_staleness=seed % 3),
        seed=seed,
        prompts=PROMPTS,
        plagues=Plagues(controller_deaths=0.01, trainer_deaths=0.01, snapshots=0.02),
    )
    outcome = simulation.run_through(faults_until=100_000)
    assert outcome.is_success, outcome.reason
    assert trained_once(simulation, steps=STEPS) == list(range(PROMPTS))
    assert [line["step"] for line in outcome.lines] == list(range(1, STEPS + 1))
    assert outcome.summary["staleness/violations"] == 0
    assert simulation.counts["trainer_deaths"] > 0
