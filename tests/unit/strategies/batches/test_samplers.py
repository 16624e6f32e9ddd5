"""Samplers order a window: each prompt once, and similar lengths side by side."""

from itertools import pairwise

import pytest

from controller.config.strategies import load_strategy
from protocol.errors import PluginError
from strategies.batches.samplers import (
    SAMPLERS,
    PromptView,
    SamplingView,
    similar_length,
    similar_length_shuffled,
)
from strategies.kinds import hold


def window(logs, *, batch_groups=2, seed=7, number=0):
    prompts = tuple(PromptView(10 + i, 0, 5, log, 1.0) for i, log in enumerate(logs))
    return SamplingView(prompts, batch_groups, seed, number)


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_prompt_of_a_window_starts_once(name):
    view = window([3.0, 1.0, 2.0, 5.0, 4.0])
    assert sorted(SAMPLERS[name](view)) == list(range(5))


LOGS = [float(i * 7 % 16) for i in range(16)]


def batches_of(sample, *, seed=7, number=0):
    """The ranks of the batches of a window, in which they are checked to be of neighbouring lengths."""
    view = window(LOGS, seed=seed, number=number)
    order = [LOGS[place] for place in sample(view)]
    assert order == [LOGS[place] for place in sample(view)]
    batches = [sorted(order[first : first + 2]) for first in range(0, 16, 2)]
    assert all(other - one == 1 for one, other in batches)
    return [int(one) // 2 for one, _ in batches]


def test_lengths_rise_in_one_window_and_fall_in_the_next():
    for seed in range(4):
        for number in range(4):
            ranks = batches_of(similar_length, seed=seed, number=number)
            assert ranks == (list(range(8))[::-1] if number % 2 else list(range(8)))


def test_chance_shuffles_the_batches():
    orders = {tuple(batches_of(similar_length_shuffled, seed=seed)) for seed in range(8)}
    assert len(orders) >= 5
    assert any(abs(one - other) > 2 for one, other in pairwise(batches_of(similar_length_shuffled)))


@pytest.mark.parametrize("sample", [similar_length, similar_length_shuffled])
def test_prompts_of_which_nothing_is_known_stay_in_their_order(sample):
    assert list(sample(window([2.5] * 6))) == list(range(6))


def test_a_sampler_of_the_users_must_name_each_place_once():
    assert hold("sampler", lambda view: [1, 0])(window([1.0, 2.0])) == [1, 0]
    for answer in ([0], [0, 0], [0, 2], 3):
        with pytest.raises(PluginError, match=r"staleness\.sampler"):
            hold("sampler", lambda view, answer=answer: answer)(window([1.0, 2.0]))


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_is_no_order(kind):
    with pytest.raises(PluginError, match=r"which is a set and has no order"):
        hold("sampler", lambda view: kind(range(len(view.prompts))))(window([1.0, 2.0]))


def test_a_sampler_is_found_by_its_name():
    assert load_strategy("sampler", "similar_length") is similar_length
