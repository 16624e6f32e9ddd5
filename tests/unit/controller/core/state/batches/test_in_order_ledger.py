"""Groups are consumed in the order of their starts, and none starts that would then be too old."""

import random

import pytest

from controller.core.state.batches.in_order_ledger import InOrderLedger
from controller.simulation import Faults, Simulation
from tests.simulation.test_simulated_runs import config


def ledger(**more):
    return InOrderLedger(**{"max_staleness": 1, "batch_groups": 2, **more})


def test_a_batch_waits_for_the_groups_that_started_first():
    books = ledger()
    for group in range(4):
        assert books.can_reserve(0)
        books.reserve(group, 0)
    assert not books.can_reserve(0)
    for group in (1, 2, 3):
        books.occupy(group)
    assert not books.is_ready()
    assert books.blockers() == [0]
    assert books.is_ready_without({0})
    books.occupy(0)
    assert books.ready_batch() == [0, 1]


def test_the_place_of_a_group_that_leaves_goes_to_the_next():
    books = ledger()
    for group in range(4):
        books.reserve(group, 0)
    books.release(0)
    books.occupy(1)
    books.occupy(2)
    assert books.ready_batch() == [1, 2]
    assert books.headroom(0) == 1


def test_a_sibling_starts_under_no_older_version():
    books = ledger()
    books.reserve(7, 1)
    assert books.can_lower(7, 1)
    assert not books.can_lower(7, 0)
    assert books.reach(1) >= books.deadline(7) > books.reach(0)


@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_ever_too_old(seed):
    rng = random.Random(seed)
    books = ledger(max_staleness=rng.randrange(4), batch_groups=rng.randrange(1, 5))
    running, versions = [], {}
    for group in range(200):
        version = max(0, books.train_version - rng.randrange(3))
        if books.can_reserve(version):
            books.reserve(group, version)
            running.append(group)
            versions[group] = version
        if running and rng.random() < 0.8:
            books.occupy(running.pop(rng.randrange(len(running))))
        if running and rng.random() < 0.1:
            books.release(running.pop(rng.randrange(len(running))))
        while (batch := books.ready_batch()) is not None and rng.random() < 0.9:
            assert all(books.train_version - versions[one] <= books.max_staleness for one in batch)
            books.consume(batch)
        books.check()
    assert books.train_version > 5


@pytest.mark.parametrize("strategy", ["nemo_rl", "prime_rl"])
def test_a_run_by_the_rules_of_another_system_keeps_the_bound_with_faults(strategy):
    faults = Faults(rollout_kills=0.1, stragglers=0.1, straggler_s=5.0)
    settings = config(strategy=strategy, max_staleness=1, steps=8)
    patient = settings.controller.model_copy(update={"respawns": 50})
    settings = settings.model_copy(update={"controller": patient})
    simulation = Simulation(settings, seed=3, faults=faults, check_every=10, with_digest=False)
    outcome = simulation.run(max_events=60_000)
    assert outcome.is_success, outcome.reason
    assert max(age for start in outcome.starts for age in start.ages) <= 1
    trained = [group for batch in outcome.trained for group in batch]
    assert len(trained) == len(set(trained))
    if strategy == "nemo_rl":
        assert trained == sorted(trained)
