"""Evaluations of agents in virtual time: episodes beside training, and every fault at once."""

import pytest
from test_evaluations import SETS
from test_simulated_runs import config

from controller.config.models import Config
from controller.simulation import Simulation
from tests.support.agent_fault_sweep import agentic, one

ENVIRONMENT = {"turns": 3, "wait_s": 0.3}


def evaluated(base: Config, **evaluation) -> Config:
    tree = base.model_dump()
    tree["evaluation"] = {"every_steps": 3, "samples": 3, "threshold": 0.5, "data": SETS, **evaluation}
    return Config.model_validate(tree, strict=False)


@pytest.mark.parametrize(
    ("exact", "agent"),
    [(True, {}), (False, {}), (True, {"concurrency": 8}), (True, {"on_limit": "mask", "max_turns": 2})],
)
def test_every_version_that_is_due_is_evaluated_by_episodes(exact, agent):
    settings = evaluated(agentic(config(max_staleness=1, group_size=4), ENVIRONMENT, **agent), exact=exact)
    outcome = Simulation(settings, seed=3, check_every=1).run()
    assert outcome.is_success, outcome.reason
    assert [line["policy_version"] for line in outcome.evaluations] == [0, 3, 6, 9, 12]
    for line in outcome.evaluations:
        assert (line["prompts"], line["failed"], line["responses"]) == (8, 0, 24)
        versions = [int(version) for version in line["tokens/by_version"]]
        assert min(versions) >= line["policy_version"]
        if exact:
            assert versions == [line["policy_version"]]
    assert outcome.summary["tokens/evaluated"] == sum(line["tokens"] for line in outcome.evaluations)
    assert outcome.summary["staleness/violations"] == 0
    assert len(outcome.lines) == 12


@pytest.mark.parametrize("seed", [2])
def test_no_fault_keeps_an_evaluation_of_agents_from_its_end(seed):
    verdict = one(seed, change=evaluated)
    assert not verdict.failure


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_no_fault_keeps_an_evaluation_of_agents_from_its_end_over_many_seeds(first):
    verdicts = [one(seed, change=evaluated) for seed in range(first, first + 20)]
    assert [verdict.failure for verdict in verdicts if verdict.failure] == []
