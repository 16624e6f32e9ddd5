"""Final lengths are predicted as the workloads have them; siblings help exactly as far as they are alike."""

import random
from collections.abc import Callable
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalError
from strategies.lengths import BINS, LengthModel

Draw = Callable[[random.Random], int]


def lognormal(draw: random.Random) -> int:
    return round(min(16_384, max(32, draw.lognormvariate(log(3000), 0.9))))


def bimodal(draw: random.Random) -> int:
    return 2000 if draw.random() < 0.9 else 24_000


def powerlaw(draw: random.Random) -> int:
    """Pareto with exponent 1.2, between 1,200 and 40,960."""
    return round(min(40_960, 1200 * draw.paretovariate(1.2)))


def uniform(draw: random.Random) -> int:
    return draw.randint(512, 8192)


WORKLOADS: dict[str, tuple[Draw, int, list[int]]] = {
    "lognormal": (lognormal, 16_384, [0, 500, 1500, 3000, 5000, 8000]),
    "bimodal": (bimodal, 24_000, [0, 1000, 1800, 2300, 10_000, 20_000]),
    "powerlaw": (powerlaw, 40_960, [0, 1000, 1500, 3000, 6000, 12_000]),
    "uniform": (uniform, 8192, [0, 400, 2000, 4000, 6000, 7500]),
}


def taught(draw: Draw, max_tokens: int, *, seed: int = 0, count: int = 2000) -> LengthModel:
    model, source = LengthModel(max_tokens), random.Random(seed)
    for _ in range(count):
        tokens = draw(source)
        model.observe(tokens, tokens == max_tokens)
    return model


def true_total(lengths: list[int], so_far: int) -> float:
    longer = [length for length in lengths if length > so_far]
    return sum(longer) / len(longer)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_2000_responses_tell_the_rest_of_a_running_one_within_10_percent(workload):
    draw, max_tokens, ages = WORKLOADS[workload]
    source = random.Random(12345)
    lengths = [draw(source) for _ in range(100_000)]
    for seed in range(3):
        model = taught(draw, max_tokens, seed=seed)
        for age in ages:
            assert model.total(age) - age == pytest.approx(true_total(lengths, age) - age, rel=0.1), age


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_quantile_is_passed_by_the_rest(workload):
    draw, max_tokens, _ = WORKLOADS[workload]
    source = random.Random(12345)
    lengths = [draw(source) for _ in range(20_000)]
    model = taught(draw, max_tokens)
    for age in (0, 1500, 3000):
        longer = [length for length in lengths if length > age]
        for q in (0.25, 0.5, 0.95):
            found = model.quantile(age, q)
            assert found >= age
            assert sum(length <= 1.03 * found for length in longer) / len(longer) > q - 0.04
            assert sum(length < 0.97 * found for length in longer) / len(longer) < q + 0.04


@pytest.mark.parametrize(("draw", "expected"), [(lognormal, 0.038), (bimodal, 0.1), (uniform, 0.12)])
def test_the_share_of_responses_near_the_longest_is_learned(draw, expected):
    assert taught(draw, 24_000).long_share() == pytest.approx(expected, rel=0.25)


def groups(rho: float, count: int, seed: int, *, size: int = 8) -> list[list[int]]:
    draw, found = random.Random(seed), []
    for _ in range(count):
        shared = draw.gauss(0, rho**0.5)
        logs = [log(3000) + 0.9 * (shared + draw.gauss(0, (1 - rho) ** 0.5)) for _ in range(size)]
        found.append([round(min(16_384, max(32, exp(value)))) for value in logs])
    return found


def with_and_without_siblings(rho: float, seed: int) -> tuple[float, float]:
    """Mean errors of the log length, with and without siblings, over members that have run for a while."""
    model = LengthModel(16_384)
    for group in groups(rho, 300, seed):
        model.observe_group(group)
        for length in group:
            model.observe(length, False)
    informed = blind = 0.0
    for group in groups(rho, 400, seed + 100):
        last, siblings, age = group[-1], group[:-1], group[-1] // 4
        informed += abs(log(model.total(age, siblings) / last))
        blind += abs(log(model.total(age) / last))
    return informed, blind


@pytest.mark.parametrize("seed", range(3))
def test_siblings_that_are_alike_remove_a_third_of_the_error(seed):
    informed, blind = with_and_without_siblings(0.8, seed)
    assert informed < 0.7 * blind


@pytest.mark.parametrize("seed", range(3))
def test_siblings_that_are_not_alike_do_no_harm(seed):
    informed, blind = with_and_without_siblings(0.0, seed)
    assert informed < 1.02 * blind


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.8])
def test_the_likeness_of_siblings_is_learned(rho):
    model = LengthModel(16_384)
    assert model.rho == 0.0
    for group in groups(rho, 500, 1):
        model.observe_group(group)
    assert model.rho == pytest.approx(rho, abs=0.08)


def test_before_any_evidence_a_response_takes_a_quarter_of_the_limit_or_half_as_much_again():
    model = LengthModel(8000)
    assert model.total(0) == model.total(0, [5, 6]) == 2000
    assert model.total(4000) == pytest.approx(6000, rel=1e-3)
    assert model.total(7000) == model.total(8000) == model.total(9000) == 8000
    assert 4000 < model.quantile(4000, 0.5) <= 8000


def test_of_two_kinds_the_short_one_is_ruled_out_by_tokens_even_against_short_siblings():
    model, draw = LengthModel(24_000), random.Random(4)
    for _ in range(500):
        kind = bimodal(draw)
        model.observe_group([kind] * 4)
        for _ in range(4):
            model.observe(kind, False)
    assert model.total(1000, [2000] * 3) == pytest.approx(2000, rel=0.02)
    assert model.total(1000, [24_000] * 3) > 20_000
    assert model.total(3000, [2000] * 3) == pytest.approx(24_000, rel=0.02)


def test_a_response_that_was_cut_short_counts_as_at_least_that_long():
    model, blind, draw = LengthModel(16_384), LengthModel(16_384), random.Random(2)
    for _ in range(4000):
        length, cut = lognormal(draw), lognormal(draw)
        model.observe(min(length, cut), cut < length)
        blind.observe(min(length, cut), False)
    source = random.Random(9)
    true = true_total([lognormal(source) for _ in range(50_000)], 0)
    assert model.total(0) == pytest.approx(true, rel=0.05)
    assert blind.total(0) < 0.7 * true


def test_lengths_of_long_ago_are_forgotten():
    model, draw = LengthModel(16_384, memory=1000), random.Random(3)
    for length in [500] * 3000 + [8000] * 5000:
        model.observe(length + draw.randint(0, 9), False)
    assert model.total(0) == pytest.approx(8000, rel=0.02)


def test_memory_is_bounded_and_weights_never_overflow():
    model, draw = LengthModel(1_000_000, memory=10), random.Random(3)
    for _ in range(10_000):
        model.observe(draw.randint(0, 1_000_000), False)
    assert len(model._ended) <= BINS
    assert 300_000 < model.total(0) < 700_000


def test_a_share_in_percent_is_refused():
    with pytest.raises(LocalError, match="expected 0 <= q <= 1"):
        LengthModel(100).quantile(0, 50)


lengths = st.integers(0, 5000)
told = st.one_of(st.tuples(lengths, st.booleans()), st.lists(lengths, max_size=5))


@given(st.integers(1, 4000), st.lists(told, max_size=40), lengths, st.lists(lengths, max_size=6))
@settings(max_examples=200)
def test_whatever_was_told_a_total_lies_between_what_is_there_and_the_limit(limit, stories, so_far, siblings):
    model = LengthModel(limit, memory=20)
    for story in stories:
        if isinstance(story, list):
            model.observe_group(story)
        else:
            model.observe(*story)
        low = min(so_far, limit)
        assert low <= model.total(so_far, siblings) <= limit
        quantiles = [model.quantile(low, q) for q in (0.0, 0.3, 0.7, 1.0)]
        assert quantiles == sorted(quantiles)
        assert low <= quantiles[0]
        assert quantiles[-1] <= limit


def test_who_only_keeps_up_predicts_later_what_who_has_predicted_all_the_time_does():
    predicting, keeping_up = LengthModel(400), LengthModel(400)
    source = random.Random(3)
    for _ in range(300):
        so_far, length = source.randrange(500), source.randrange(1, 400)
        predicting.total(so_far)
        keeping_up.keep_up(so_far)
        for model in (predicting, keeping_up):
            model.observe(length, False)
    assert predicting._totals == keeping_up._totals
    assert predicting._fresh == keeping_up._fresh


@pytest.mark.parametrize("longest", [500, 4000, 8192])
def test_the_share_of_the_longest_is_that_of_those_near_the_longest(longest):
    model = LengthModel(8192)
    for number in range(400):
        model.observe(longest if number % 4 == 0 else 100, False)
    assert model.long_share() == pytest.approx(0.25, abs=0.01)  # before anything else was asked
    for _ in range(1200):
        model.observe(100, False)
    assert model.long_share() == pytest.approx(100 / 1600, abs=0.01)
