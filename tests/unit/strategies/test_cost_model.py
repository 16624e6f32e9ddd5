"""The cost model gives the published figures, and is read from text strictly."""

import json

import pytest

from protocol.errors import ConfigError
from strategies.cost_model import (
    QWEN_7B_TP1,
    Coefficients,
    dump_coefficients,
    ideal_gain,
    load_coefficients,
    marginal_gain,
    prefill_s,
    scaled,
    step_latency,
    throughput,
)
from tests.support.published_engines import PUBLISHED

LENGTH = 4000


@pytest.mark.parametrize(
    ("running", "expected"), [(0, 0.0), (1, 107.1), (16, 1410.4), (30, 2269.3), (64, 2915.1), (65, 2926.4)]
)
def test_throughput_is_the_published_one(running, expected):
    assert throughput(QWEN_7B_TP1, running, running * LENGTH) == pytest.approx(expected, rel=1e-3)


def test_gains_are_the_published_ones():
    assert marginal_gain(QWEN_7B_TP1, 64, 64 * LENGTH, LENGTH) == pytest.approx(11.28, rel=1e-3)
    assert ideal_gain(QWEN_7B_TP1, LENGTH) == pytest.approx(107.14, rel=1e-3)


@pytest.mark.parametrize(
    ("machine", "mu", "expected"),
    [
        ("7b-tp1", 0.2, 41),
        ("7b-tp1", 0.3, 30),
        ("7b-tp1", 0.5, 29),
        ("7b-tp2", 0.3, 42),
        ("14b-tp1", 0.3, 26),
        ("32b-tp2", 0.3, 42),
        ("30b-a3b-tp1", 0.3, 25),
    ],
)
def test_filling_one_instance_greedily_stops_where_the_published_one_does(machine, mu, expected):
    coefficients, running = PUBLISHED[machine], 0
    cut = mu * ideal_gain(coefficients, LENGTH)
    while marginal_gain(coefficients, running, running * LENGTH, LENGTH) >= cut:
        running += 1
    assert running == expected


def test_prefill_grows_faster_than_the_tokens_that_it_computes():
    assert prefill_s(QWEN_7B_TP1, 1000) == pytest.approx(0.0027 + 0.1231 + 0.00163)
    assert prefill_s(QWEN_7B_TP1, 20_000) > 20 * prefill_s(QWEN_7B_TP1, 1000)
    assert prefill_s(QWEN_7B_TP1, 0) == pytest.approx(0.0027)


def test_scaling_changes_decode_apart_from_prefill():
    slower = scaled(QWEN_7B_TP1, decode=3.0, prefill=0.5)
    assert step_latency(slower, 50, 9999) == pytest.approx(3 * step_latency(QWEN_7B_TP1, 50, 9999))
    assert prefill_s(slower, 700) == pytest.approx(prefill_s(QWEN_7B_TP1, 700) / 2)


@pytest.mark.parametrize("machine", PUBLISHED)
def test_coefficients_survive_the_way_through_text(machine):
    assert load_coefficients(dump_coefficients(PUBLISHED[machine])) == PUBLISHED[machine]


def test_prefill_may_be_left_out():
    text = json.dumps(dict(zip(Coefficients._fields[:5], (1, 0.5, 0.25, 0, 0), strict=True)))
    assert load_coefficients(text) == Coefficients(1.0, 0.5, 0.25, 0.0, 0.0)


GOOD = QWEN_7B_TP1._asdict()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("floor: 1", "are no JSON"),
        ("[1, 2]", "are a JSON list"),
        (json.dumps(GOOD | {"flor": 1.0}), r"unknown keys \['flor'\]"),
        (json.dumps({"floor": 1.0}), r"lack \['other_b', 'other_k', 'attention_b', 'attention_k'\]"),
        (json.dumps(GOOD | {"other_k": -1e-9}), "other_k = -1e-09"),
        (json.dumps(GOOD | {"other_k": True}), "other_k = True"),
        (json.dumps(GOOD | {"other_k": "1"}), "other_k = '1'"),
        (json.dumps(GOOD | {"other_k": float("nan")}), "other_k = nan"),
        ('{"floor": 1, "floor": 2}', r"give \['floor'\] twice"),
        (json.dumps(dict.fromkeys(GOOD, 0)), "take 0 s"),
        (json.dumps(GOOD | {"floor": 10**400}), "floor = 1000"),
    ],
)
def test_text_that_is_no_cost_model_is_refused_in_words(text, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        load_coefficients(text)
    assert "launch.py profile" in str(caught.value)
