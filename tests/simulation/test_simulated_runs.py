"""Whole runs of the production core in virtual time: stories, and a sweep over seeds with faults."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.core.decisions.placement.dispatch import Dispatch
from controller.core.state.views.instances import instance_view, takes_work
from controller.simulation import Faults, Simulation
from tests.support.sampled_seeds import sampled_seeds

ROOT = Path(__file__).parents[2]


def config(*, max_staleness=2, batch_groups=4, group_size=4, instances=3, steps=12, **staleness) -> Config:
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {
                "instances": instances,
                "group_size": group_size,
                "max_response_tokens": 100,
                "max_running": 32,
            },
            "trainer": {"batch_groups": batch_groups},
            "staleness": {"max_staleness": max_staleness, "mu": 0.0, **staleness},
            "controller": {"attach_timeout_s": 12.0},
            "simulation": {
                "workload": {"median_tokens": 20, "low_tokens": 1, "prompt_tokens": 16},
                "engine": {"floor_s": 0.02, "decode_base_s": 0.0, "decode_context_s": 0.0},
                "train_base_s": 2.0,
                "train_token_s": 0.0,
                "publish_s": 0.2,
                "pull_s": 0.3,
                "score_s": 0.05,
            },
        }
    )


FAULTS = Faults(rollout_kills=0.05, stragglers=0.05, slow_links=0.02, late_share=0.02)


class Watched(Simulation):
    """Compares what routing sees with what is, after every event."""

    compared = 0

    def _deliver(self, event):
        super()._deliver(event)
        state, registry = self.core.state, self.core.state.registry
        for instance in registry.instances():
            if instance.peer not in registry.changed:
                seen = self.core.views.shown.get(instance.id)
                assert (seen is not None) == takes_work(state, instance)
                if seen is not None:
                    now = instance_view(state, instance)
                    tokens = {name: getattr(now, name) for name in ("resident_tokens", "expected_tokens")}
                    assert seen._replace(**tokens) == now  # those of running responses come with each report
                    self.compared += 1


@pytest.mark.parametrize("rules", [{}, {"strategy": "greedy"}, {"strategy": "areal"}])
def test_routing_sees_every_instance_as_it_is(rules):
    run = Watched(config(instances=6, **rules), seed=1, faults=FAULTS)
    assert run.run().is_success
    assert run.compared > 1000


@pytest.mark.parametrize(
    "rules", [{}, {"in_flight_batches": "all", "routing": "least_requests"}, {"mu": 0.3, "decide_s": 0.5},
              {"spare_groups": 2, "spare_responses": 1}, {"strategy": "areal"}, {"strategy": "verl_async"},
              {"partial_rollout": False, "keep_kv": False}, {"stragglers": "retry"}]
)  # fmt: skip
def test_a_dispatch_that_is_left_out_would_have_routed_nothing(rules, monkeypatch):
    digests = []
    for looks_always in (False, True):
        if looks_always:
            monkeypatch.setattr(Dispatch, "_situation", lambda self: object())
        runs = [Simulation(config(steps=8, **rules), seed=seed, faults=FAULTS) for seed in range(3)]
        digests.append([run.run().digest for run in runs])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_every_batch_keeps_the_bound_and_the_bound_is_used(max_staleness):
    outcome = Simulation(
        config(max_staleness=max_staleness, in_flight_batches="all"), seed=1, check_every=1
    ).run()
    assert outcome.is_success, outcome.reason
    assert len(outcome.lines) == 12
    ages = [line["staleness/max"] for line in outcome.lines]
    assert max(ages) == max_staleness
    assert outcome.summary["staleness/violations"] == 0


def test_more_staleness_is_faster_under_a_heavy_tail():
    times = [Simulation(config(max_staleness=s), seed=5).run().summary["time_s"] for s in (0, 1, 2)]
    assert times[0] > 1.3 * times[1]  # virtual seconds: exact, not measured
    assert times[1] > times[2]


def test_no_prompt_is_trained_twice_and_none_is_left_out_without_faults():
    outcome = Simulation(config(), seed=2, check_every=1).run()
    trained = [group for batch in outcome.trained for group in batch]
    assert len(trained) == len(set(trained)) == 48
    assert set(trained) <= set(range(48 + 12 * 4))
    assert outcome.summary["tokens/lost"] == 0


@pytest.mark.parametrize("seed", sampled_seeds(10, 120))
def test_killed_and_silent_workers_lose_no_prompt_and_break_no_bound(seed):
    faults = Faults(rollout_kills=0.15, reward_kills=0.05)
    kinds = {
        "max_staleness": seed % 5,
        "partial_rollout": seed % 3 != 0,
        "routing": ("marginal_gain", "least_requests", "round_robin")[seed % 3],
        "in_flight_batches": "auto" if seed % 2 or seed % 5 == 0 else 1.5,
    }
    simulation = Simulation(config(**kinds), seed=seed, faults=faults, prompts=48, check_every=1)
    outcome = simulation.run(max_events=200_000)
    assert outcome.is_success, outcome.reason
    assert sorted(group for batch in outcome.trained for group in batch) == list(range(48))
    assert outcome.summary["staleness/violations"] == 0
    simulation.core.check()


def test_a_run_that_cannot_keep_a_worker_ends_with_the_reason():
    faults = Faults(rollout_kills=50.0, hang_share=0.0)
    outcome = Simulation(config(instances=1), seed=1, faults=faults).run()
    assert not outcome.is_success
    assert "No rollout worker is left" in outcome.reason


def test_the_end_of_the_data_ends_the_run_and_says_what_was_left_over():
    outcome = Simulation(config(steps=100), seed=1, prompts=18, check_every=1).run()
    assert outcome.is_success
    assert (
        outcome.reason == "The data ended after 4 train steps; 2 groups were left over, too few for a batch."
    )


def test_without_partial_rollout_no_trajectory_has_two_versions():
    outcome = Simulation(config(partial_rollout=False), seed=3, check_every=1).run()
    assert outcome.is_success
    assert all(line["partial/share"] == 0 for line in outcome.lines)
    partial = Simulation(config(partial_rollout=True), seed=3, check_every=1).run()
    assert any(line["partial/share"] > 0 for line in partial.lines)


def test_equal_seeds_give_equal_commands_under_any_hash_seed():
    code = (
        "from tests.simulation.test_simulated_runs import config;"
        "from controller.simulation import Faults, Simulation;"
        "print(Simulation(config(), seed=7, faults=Faults(0.2, 0.05)).run().digest)"
    )
    digests = set()
    for hash_seed in ("0", "1", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1
