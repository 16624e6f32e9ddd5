"""A sample of benchmarks/fuzz_values.py: random values in every field of every message."""

from collections import Counter

import pytest

from tests.support.random_values import one

THOROUGH = 1_000_000  # messages, in PARTS
PARTS = 20
WORLDS_APART = 1_000_000  # seeds between two parts


def test_random_values_make_nothing_raise_break_no_invariant_and_hold_no_run_up():
    verdicts = [one(seed) for seed in range(14)]
    assert [verdict.failure for verdict in verdicts if verdict.failure] == []
    said = sum((verdict.said for verdict in verdicts), Counter())
    assert said.total() > 400
    assert len(said) > 12  # kinds of messages
    assert sum(verdict.closed for verdict in verdicts) > 100


def test_a_worker_that_foretells_its_orders_does_not_hold_the_run_up():
    assert one(18_000_146).failure == ""


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_a_million_of_them(part):
    said, seed, failures = 0, (part + 1) * WORLDS_APART, list[str]()
    while said < THOROUGH // PARTS:
        verdict = one(seed)
        said, seed = said + verdict.said.total(), seed + 1
        failures += [verdict.failure] * bool(verdict.failure)
    assert failures == []
