"""The whole protocol in virtual time: redundancy, filters, stragglers, rules of other systems."""

from collections import Counter

import pytest
from test_simulated_runs import config

from controller.simulation import Faults, Simulation

STRICT = ["staleflow", "sync", "one_step", "roll_flash", "nemo_rl", "prime_rl", "greedy"]
LOOSE = ["areal", "verl_async"]


def run(seed=1, faults=None, prompts=None, tail=False, **staleness):
    settings = config(**staleness)
    if tail:  # one response in ten is twelve times as long as the others, and training takes no time
        rollout = settings.rollout.model_copy(update={"max_response_tokens": 2400})
        workload = settings.simulation.workload.model_copy(update={"kind": "bimodal"})
        simulated = settings.simulation.model_copy(update={"workload": workload, "train_token_s": 0.0})
        settings = settings.model_copy(update={"rollout": rollout, "simulation": simulated})
    simulation = Simulation(settings, seed=seed, faults=faults, prompts=prompts, check_every=1)
    return simulation, simulation.run(max_events=300_000)


def trained_members(simulation, outcome):
    """How many responses of each group were trained."""
    return Counter(n for start in outcome.starts for n in [start.trajectories // len(start.groups)])


def test_with_spare_responses_exactly_the_group_size_is_trained():
    simulation, outcome = run(spare_responses=2)
    assert outcome.is_success, outcome.reason
    assert set(trained_members(simulation, outcome)) == {4}
    tokens = simulation.core.state.accounts.tokens()
    assert tokens.aborted > 0  # what the spare ones had generated


def test_spare_responses_favour_short_ones_and_are_faster():
    _, plain = run(seed=3, synchronization="greedy")
    _, spare = run(seed=3, synchronization="greedy", spare_responses=4)
    assert spare.summary["time_s"] < plain.summary["time_s"]


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
def test_with_spare_groups_every_batch_is_whole_and_within_the_bound(max_staleness):
    _, outcome = run(max_staleness=max_staleness, spare_groups=2, in_flight_batches="all")
    assert outcome.is_success, outcome.reason
    assert all(len(start.groups) == 4 for start in outcome.starts)
    assert outcome.summary["staleness/violations"] == 0
    assert max(max(start.ages) for start in outcome.starts) <= max_staleness


def test_what_no_batch_can_use_is_aborted_and_nothing_else_is():
    _, outcome = run(max_staleness=1, spare_groups=3, in_flight_batches="all", group_size=2)
    counts = outcome.summary["counts"]
    assert counts["groups/useless"] > 0
    _, without = run(max_staleness=1, in_flight_batches="all", group_size=2)
    assert "groups/useless" not in without.summary["counts"]


def test_a_filtered_group_is_replaced_by_exactly_one_fresh_prompt():
    _, plain = run(prompts=60)
    _, outcome = run(filter=f"{__name__}:first_is_good", prompts=60)
    dropped = outcome.summary["counts"]["groups/filtered"]
    trained = [group for batch in outcome.trained for group in batch]
    assert len(plain.trained) == 12, "the data suffice where no group is dropped"
    assert outcome.reason == f"The data ended after {len(outcome.trained)} train steps."
    assert dropped > 0
    assert len(trained) == len(set(trained))
    assert {len(batch) for batch in outcome.trained} == {4}
    assert len(trained) + dropped == 60, "each prompt is trained or dropped, once"


def first_is_good(rewards):
    return rewards[0] > 0.5


@pytest.mark.parametrize("what", ["retry", "truncate"])
def test_stragglers_alone_at_the_bound_do_not_hold_the_trainer(what):
    rules = {"max_staleness": 1, "in_flight_batches": "all", "group_size": 2, "tail": True}
    _, waiting = run(seed=5, **rules)
    _, outcome = run(seed=5, stragglers=what, straggler_groups=4, **rules)
    assert outcome.is_success, outcome.reason
    done = {"retry": "stragglers/retried", "truncate": "stragglers/truncated"}[what]
    assert outcome.summary["counts"][done] > 0
    assert outcome.summary["staleness/violations"] == 0
    assert outcome.summary["time_s"] < waiting.summary["time_s"]
    trained = [group for batch in outcome.trained for group in batch]
    assert len(trained) == len(set(trained)) == 48


def test_a_prompt_that_was_begun_anew_is_not_lost():
    rules = {"max_staleness": 1, "in_flight_batches": "all", "straggler_groups": 4, "group_size": 2}
    _, outcome = run(seed=5, stragglers="retry", prompts=48, tail=True, **rules)
    assert sorted(group for batch in outcome.trained for group in batch) == list(range(48))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pace", [0.0, 0.9])
def test_a_prompt_that_is_begun_anew_does_not_hold_the_same_batch_back_again(pace, seed):
    lazy = {"keep_kv": True, "synchronization": "every_few", "sync_steps": 2, "decide_s": 0.3, "mu": 0.3}
    rules = {"max_staleness": 1, "in_flight_batches": 1.5, "pace": pace}  # with old weights it is due at once
    _, outcome = run(seed=seed, stragglers="retry", prompts=48, **rules, **lazy)
    assert outcome.is_success, outcome.reason
    assert sorted(group for batch in outcome.trained for group in batch) == list(range(48))
    assert 0 < outcome.summary["counts"]["stragglers/retried"] < 10


@pytest.mark.parametrize("strategy", STRICT)
def test_presets_that_promise_the_bound_keep_it(strategy):
    bound = {"sync": 0, "one_step": 1}.get(strategy, 2)
    _, outcome = run(strategy=strategy, max_staleness=bound, faults=Faults(rollout_kills=0.05))
    assert outcome.is_success, outcome.reason
    assert outcome.summary["staleness/violations"] == 0
    assert max(max(start.ages) for start in outcome.starts) <= bound


@pytest.mark.parametrize("strategy", LOOSE)
def test_presets_that_promise_none_say_how_often_they_broke_it(strategy):
    _, outcome = run(strategy=strategy, max_staleness=1, steps=40, tail=True, group_size=2)
    assert outcome.is_success, outcome.reason
    late = sum(n for start in outcome.starts for age, n in start.ages.items() if age > 1)
    assert outcome.summary["staleness/violations"] == late
    assert late > 0


def test_sync_is_one_batch_after_another():
    _, outcome = run(strategy="sync", max_staleness=0)
    assert outcome.summary["staleness/max"] == 0


def test_kept_kv_is_never_prefilled_again():
    _, kept = run(seed=2, keep_kv=True, migration="none")
    assert kept.summary["tokens/reprefilled"] == 0
    assert any(line["partial/share"] > 0 for line in kept.lines)
