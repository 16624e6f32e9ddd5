"""The price of leaving home, on views made by hand."""

import pytest

from strategies.cost_model import QWEN_7B_TP1, prefill_s, scaled, step_latency
from strategies.routing import by_marginal_gain, moving_loss
from strategies.views import Settings
from tests.support.made_views import WORK, instance

TURN = WORK._replace(expected_tokens=4100, home=1, held_tokens=3900)
SETTINGS = Settings(mu=0.0)


def test_a_turn_goes_home_unless_that_is_full_or_much_slower():
    views = [instance(0, 4, 16_000), instance(1, 8, 32_000)]
    assert by_marginal_gain(TURN._replace(home=-1, held_tokens=0), views, SETTINGS) == 0
    assert by_marginal_gain(TURN, views, SETTINGS) == 1
    assert by_marginal_gain(TURN, views, SETTINGS._replace(affinity=False)) == 0
    assert by_marginal_gain(TURN, [views[0], instance(1, 8, 32_000, capacity=8)], SETTINGS) == 0
    crowded = instance(1, 150, 600_000, expected_tokens=1_800_000)
    long = TURN._replace(expected_tokens=12_000)
    assert by_marginal_gain(long, [instance(0), crowded], SETTINGS._replace(typical_tokens=4000)) == 0


def test_the_price_is_the_share_of_the_rest_of_the_episode_that_the_prefill_takes():
    there = instance(0, 7, 28_000)
    extra_s = prefill_s(QWEN_7B_TP1, 4000) - prefill_s(QWEN_7B_TP1, 100)
    latency = step_latency(QWEN_7B_TP1, 8, 32_000)
    assert moving_loss(TURN, there) == pytest.approx(8 / latency * extra_s / (extra_s + 100 * latency))
    long = TURN._replace(expected_tokens=400_000)
    assert moving_loss(long, there) < moving_loss(TURN, there) / 50
    quick = there._replace(coefficients=scaled(QWEN_7B_TP1, decode=1.0, prefill=0.01))
    assert moving_loss(TURN, quick) < moving_loss(TURN, there) / 20


def test_work_without_a_home_pays_nothing():
    views = [instance(0, 4, 16_000), instance(1, 8, 32_000)]
    for affinity in (False, True):
        assert by_marginal_gain(WORK, views, SETTINGS._replace(affinity=affinity)) == 0
