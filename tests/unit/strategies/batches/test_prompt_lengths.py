"""What the lengths of earlier responses to a prompt say of the next ones, in bounded memory."""

import random
from math import exp, log1p

import numpy as np
import pytest

from strategies.batches.prompt_lengths import PromptLengths, PromptTable

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


def test_a_full_memory_forgets_what_was_met_longest_ago_and_stays_bounded():
    model = PromptLengths(64)
    for prompt in range(1, 1001):
        model.observe(prompt, 0, [prompt])
    assert len(model) <= 64
    assert model.forgotten == 1000 - len(model)
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
