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


def window(logs, *, batch_groups=2, seed=7):
    prompts = tuple(PromptView(10 + i, 0, 5, log, 1.0) for i, log in enumerate(logs))
    return SamplingView(prompts, batch_groups, seed)


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_prompt_of_a_window_starts_once(name):
    view = window([3.0, 1.0, 2.0, 5.0, 4.0])
    assert sorted(SAMPLERS[name](view)) == list(range(5))


LOGS = [float(i * 7 % 16) for i in range(16)]


@pytest.mark.parametrize("sample", [similar_length, similar_length_shuffled])
def test_batches_are_of_similar_length_and_chance_has_a_part_in_their_order(sample):
    orders = []
    for seed in range(8):
        order = [LOGS[place] for place in sample(window(LOGS, seed=seed))]
        batches = [order[first : first + 2] for first in range(0, 16, 2)]
        assert all(abs(one - other) == 1 for one, other in batches)
        assert order == [LOGS[place] for place in sample(window(LOGS, seed=seed))]
        orders.append(tuple(order))
    assert len(set(orders)) >= 5


def test_neighbouring_batches_are_of_neighbouring_lengths_unless_they_are_shuffled():
    for seed in range(8):
        order = [LOGS[place] for place in similar_length(window(LOGS, seed=seed))]
        ranks = [order[first] // 2 for first in range(0, 16, 2)]
        assert all(abs(one - other) <= 2 for one, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    shuffled = [LOGS[place] for place in similar_length_shuffled(window(LOGS))]
    ranks = [shuffled[first] // 2 for first in range(0, 16, 2)]
    assert any(abs(one - other) > 2 for one, other in pairwise(ranks))


def test_lengths_rise_first_in_some_windows_and_fall_first_in_others():
    behind = set()
    for seed in range(16):
        order = [LOGS[place] // 2 for place in similar_length(window(LOGS, seed=seed))][::2]
        behind.add([*order, order[0]][order.index(0) + 1])  # the batch behind the shortest
    assert behind == {1, 2}


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
