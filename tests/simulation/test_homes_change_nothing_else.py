"""Runs without agents give the same commands whatever homes cost; runs with them prefill less."""

import pytest

from controller.config.models import Config
from controller.simulation.host import Simulation


def run(*, agent=None, **staleness):
    config = Config.model_validate({
        "run": {"steps": 4},
        "rollout": {"instances": 3, "group_size": 4, "max_response_tokens": 256, "max_prompt_tokens": 4000},
        "agent": agent or {},
        "trainer": {"batch_groups": 4},
        "staleness": {"max_staleness": 2, **staleness},
        "simulation": {
            "workload": {"median_tokens": 60}, "pull_s": 0.5, "train_token_s": 1e-5,
            "environment": {"turns": 5, "given_tokens": 150, "wait_s": 1.0},
        },
    })  # fmt: skip
    outcome = Simulation(config, seed=1, check_every=50).run()
    assert outcome.is_success, outcome.reason
    return outcome


@pytest.mark.parametrize("keep_kv", [False, True])
def test_single_turn_runs_give_the_same_commands_with_and_without_homes(keep_kv):
    digests = {run(affinity=affinity, keep_kv=keep_kv).digest for affinity in (True, False)}
    assert len(digests) == 1


def test_agents_prefill_less_where_homes_count():
    agent = {"function": "simulated", "concurrency": 200}
    home, away = (run(agent=agent, affinity=affinity).starts[-1].totals for affinity in (True, False))
    assert home.prefilled / home.decoded < 0.7 * away.prefilled / away.decoded
