"""What the lengths of earlier responses to a prompt say of the next ones, in bounded memory."""

import random
from math import exp, log1p

import numpy as np
import pytest

from strategies.batches import prompt_lengths
from strategies.batches.prompt_lengths import GROUPS, PromptLengths, PromptTable

SIGMA = 1.3


def epochs(model, *, prompts, rho, size, count, seed=1, drift=0.0):
    """Squared errors of expected log lengths by epoch, over responses; lengths are lognormal."""
    draw = random.Random(seed)
    own = [draw.gauss(0, SIGMA * rho**0.5) for _ in range(prompts)]  # what its responses share
    squares = []
    for epoch in range(count):
        order = draw.sample(range(prompts), prompts)
        errors = []
        for prompt in order:
            (one,) = model.expect([(1 + prompt, 0)])
            logs = [
                7 + drift * epoch + own[prompt] + draw.gauss(0, SIGMA * (1 - rho) ** 0.5) for _ in range(size)
            ]
            errors += [(value - one.log) ** 2 for value in logs]
            model.observe(1 + prompt, 0, [round(exp(value)) for value in logs])
        squares.append(float(np.mean(errors)))
    return squares


@pytest.mark.parametrize(("rho", "size"), [(0.8, 8), (0.5, 8), (0.8, 1), (0.0, 8)])
def test_a_prompt_met_before_is_foretold_nearly_as_well_as_its_own_mean_allows(rho, size):
    found = epochs(PromptLengths(), prompts=600, rho=rho, size=size, count=4)
    noise = SIGMA**2 * (1 - rho)
    between = SIGMA**2 * rho
    # the best that a mean of `size` earlier responses allows: noise, and what is not known of the prompt
    best = noise + between * noise / size / (between + noise / size) if rho else noise
    assert found[1] == pytest.approx(best, rel=0.12)
    assert found[3] < found[1] * 1.05


def test_growing_responses_shift_what_is_expected():
    found = epochs(PromptLengths(), prompts=600, rho=0.8, size=8, count=6, drift=0.3)
    still = epochs(PromptLengths(), prompts=600, rho=0.8, size=8, count=6)
    assert found[5] < still[5] + 0.3**2 + 0.05


def test_a_new_prompt_is_expected_to_be_like_its_source():
    model = PromptLengths()
    for prompt in range(1, 40):
        model.observe(prompt, prompt % 2, [100, 100] if prompt % 2 else [1000, 1000])
    short, long, other = model.expect([(1000, 1), (1001, 0), (1002, 2)])
    assert (short.seen, long.seen) == (0, 0)
    assert short.log == pytest.approx(log1p(100), abs=1e-6)
    assert long.log == pytest.approx(log1p(1000), abs=1e-6)
    assert short.log < other.log < long.log


def test_prompts_without_identity_are_not_told_apart():
    model = PromptLengths()
    model.observe(0, 0, [10, 20])
    assert len(model) == 0
    assert model.expect([(0, 0)])[0].seen == 0


def test_responses_without_identity_say_nothing_of_prompts_that_have_one():
    model = PromptLengths()
    for _ in range(3):
        model.observe(1, 0, [100])
        model.observe(2, 0, [10])
    before = model.expect([(1, 0), (2, 0)])
    for _ in range(20):
        model.observe(0, 1, [5000])
    assert model.expect([(1, 0), (2, 0)]) == before


def test_a_slope_is_half_of_what_it_is_believed_to_be_until_groups_have_shown_more():
    model = PromptLengths()
    for length in (10, 100):
        model.observe(length, 0, [length])
    for length in (10, 100):  # each comes back as it was: two groups of evidence for 1, eight for 1/2
        model.observe(length, 0, [length])
    short, long = model.expect([(10, 0), (100, 0)])
    assert long.log - short.log == pytest.approx((2 * 1 + 8 * 0.5) / 10 * (log1p(100) - log1p(10)), rel=1e-4)


def test_the_mean_of_a_source_follows_the_policy():
    model = PromptLengths()
    for length, groups in ((10, 2 * GROUPS), (1000, GROUPS)):
        for _ in range(groups):
            model.observe(0, 0, [length])
    moved = (model.expect([(0, 0)])[0].log - log1p(10)) / (log1p(1000) - log1p(10))
    assert moved == pytest.approx(1 - exp(-1), abs=0.01)  # and not a third


def test_what_came_back_long_ago_counts_for_little(monkeypatch):
    monkeypatch.setattr(prompt_lengths, "GROUPS", 8)
    model = PromptLengths()
    for _ in range(200):
        for prompt, length in ((1, 10), (2, 1000)):
            model.observe(prompt, 0, [length])
    short, long = model.expect([(1, 0), (2, 0)])
    assert long.log - short.log > 2
    for _ in range(8):  # now each is as the other was
        for prompt, length in ((1, 1000), (2, 10)):
            model.observe(prompt, 0, [length])
    short, long = model.expect([(1, 0), (2, 0)])
    assert long.log == pytest.approx(short.log)  # no slope, and none below 0 either


def test_what_is_remembered_of_a_prompt_is_of_its_last_responses():
    model = PromptLengths()
    for length in (*[10] * 100, 1000):
        model.observe(1, 0, [length] * 8)
    log, seen = model._table.find(1)
    assert seen == 32
    assert log == pytest.approx((32 * log1p(10) + 8 * log1p(1000)) / 40, rel=1e-6)


def test_a_full_memory_forgets_what_was_met_longest_ago_and_stays_bounded():
    model = PromptLengths(64)
    for prompt in range(1, 1001):
        model.observe(prompt, 0, [prompt])
    assert len(model) == sum(one.seen > 0 for one in model.expect([(n, 0) for n in range(1, 1001)])) <= 64
    assert model.expect([(1000, 0)])[0].seen
    assert not model.expect([(1, 0)])[0].seen


def test_a_table_that_grows_keeps_its_prompts_and_when_they_were_met():
    table = PromptTable(1)
    for prompt in (8, 16, 24):
        table.put(prompt, float(prompt), 2.0)
    larger = table.doubled()
    assert [larger.find(prompt) for prompt in (8, 16, 24, 9)] == [
        (8.0, 2.0),
        (16.0, 2.0),
        (24.0, 2.0),
        (0, 0),
    ]
    assert larger.find_all([24, 9, 0]) == ([24.0, 0.0, 0.0], [2.0, 0.0, 0.0])
    for prompt in range(32, 32 + 8 * 6, 8):
        larger.put(prompt, 1.0, 1.0)
    assert larger.find(8) == (0.0, 0.0)  # the first that was met, though it was moved
    assert larger.find(16)[1]


def test_a_table_that_grows_knows_which_prompt_was_met_last():
    table = PromptTable(1)
    for prompt in (8, 16, 24, *[8] * 9):
        table.put(prompt, 1.0, 1.0)
    larger = table.doubled()
    for prompts, gone in (([32, 40, 48, 56, 64, 72], {16}), ([80], {16, 24}), ([88], {8, 16, 24})):
        for prompt in prompts:
            larger.put(prompt, 1.0, 1.0)
        assert {prompt for prompt in (8, 16, 24, 32, 40) if not larger.find(prompt)[1]} == gone
