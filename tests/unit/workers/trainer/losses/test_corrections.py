"""Importance weights, rejection, proximal interpolation and token weights against hand-worked numbers."""

import math

import pytest
import torch

from workers.trainer.losses import (
    effective_sample_size,
    importance_weights,
    loglinear_proximal,
    mismatch_metrics,
    rejection,
    response_weights,
)

SEQUENCES = torch.tensor([0, 0, 1, 1])
GROUPS = torch.tensor([0, 0, 0, 0])


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def weights(*ratios, advantages=(1, 1, 1, 1), kind="truncate", level="token", low=0.0, cap=2.0):
    trained, rollout = doubles(*ratios).log() - 2, torch.full((len(ratios),), -2.0, dtype=torch.float64)
    sequences, advantages = SEQUENCES[: len(ratios)], doubles(*advantages[: len(ratios)])
    bounds = {"low": low, "cap": cap}
    return importance_weights(
        trained, rollout, sequences, advantages_N=advantages, kind=kind, level=level, **bounds
    )


def test_truncation_holds_weights_within_their_bounds():
    found = weights(1.0, 0.1, 4.0, 2.0, low=0.5)
    assert found.weights_N.tolist() == pytest.approx([1.0, 0.5, 2.0, 2.0], abs=1e-9)
    assert found.bounded_N.tolist()[:3] == [False, True, True]


def test_masks_give_no_weight_outside_of_the_bounds():
    found = weights(1.0, 0.1, 4.0, 1.5, kind="mask", low=0.5)
    assert found.weights_N.tolist() == pytest.approx([1.0, 0.0, 0.0, 1.5], abs=1e-9)


def test_a_taper_weighs_only_what_was_worse_than_usual_and_never_above_one():
    found = weights(0.5, 0.1, 4.0, 4.0, advantages=(-1, -1, -1, 2), kind="taper", low=0.2, cap=9.0)
    assert found.weights_N.tolist() == pytest.approx([0.5, 0.2, 1.0, 1.0], abs=1e-9)
    assert found.bounded_N.tolist() == [False, True, True, False]
    whole = weights(0.5, 0.8, 0.5, 0.8, advantages=(-1, -1, 1, 0), kind="taper", level="sequence")
    assert whole.weights_N.tolist() == pytest.approx([0.4, 0.4, 1.0, 1.0], abs=1e-9)


def test_a_responses_weight_is_the_product_of_its_tokens():
    assert weights(0.5, 0.8, 4.0, 2.0, level="sequence").weights_N.tolist() == pytest.approx(
        [0.4, 0.4, 2.0, 2.0], abs=1e-9
    )
    masked = weights(0.5, 0.8, 4.0, 2.0, level="sequence", kind="mask").weights_N
    assert masked.tolist() == pytest.approx([0.4, 0.4, 0.0, 0.0], abs=1e-9)


def test_weights_that_are_not_wanted_are_one():
    assert weights(0.5, 7.0, kind="none").weights_N.tolist() == [1.0, 1.0]


def test_weights_of_what_is_not_finite_are_one():
    trained, rollout = doubles(-1.0, -math.inf, math.nan, -1.0), doubles(-math.inf, -1, -1, -500)
    how = {"kind": "truncate", "level": "token", "low": 0.0, "cap": 2.0}
    found = importance_weights(trained, rollout, SEQUENCES, advantages_N=trained, **how)
    assert found.weights_N.tolist() == [1.0, 1.0, 1.0, 2.0]


def test_bounds_without_one_and_unequal_shapes_are_refused():
    with pytest.raises(ValueError, match=r"bounds 0\.0 and 0\.5"):
        weights(1.0, cap=0.5)
    how = {"kind": "none", "level": "token", "low": 0.0, "cap": 2.0}
    with pytest.raises(ValueError, match="expected equal shapes"):
        importance_weights(torch.zeros(2), torch.zeros(3), SEQUENCES, advantages_N=torch.zeros(2), **how)


def test_effective_sample_size_is_one_for_equal_weights_and_one_token_in_four_for_a_single_one():
    assert effective_sample_size(doubles(2, 2, 2, 2)) == pytest.approx(1.0)
    assert effective_sample_size(doubles(0, 3, 0, 0)) == pytest.approx(0.25)
    assert effective_sample_size(doubles(0, 0)) == 0.0


def test_the_loglinear_proximal_policy_lies_between_rollout_and_trained_by_version():
    rollout, trained = doubles(-1, -1, -1), doubles(-2, -2, -2).requires_grad_()
    found = loglinear_proximal(trained, rollout, torch.tensor([5, 4, 2]), train_version=5)
    assert found.tolist() == pytest.approx([-1.0, -1.5, -1.75], abs=1e-9)  # ages 0, 1, 3
    assert not found.requires_grad


def naive_rejection(d, units, containers, action, metric, aggregate, bounds):
    """Factor per token, by loops over plain floats."""
    values = {
        "ratio": d,
        "k1": [-x for x in d],
        "k2": [x * x / 2 for x in d],
        "k3": [math.exp(x) - 1 - x for x in d],
    }[metric]
    low, high = (math.log(b) for b in bounds) if metric == "ratio" else bounds
    total = {"sum": sum, "max": max, "mean": lambda some: sum(some) / len(some)}[aggregate]
    value = [total([v for v, u in zip(values, units, strict=True) if u == unit]) for unit in units]
    bad = [not low <= v <= high for v in value]
    if action == "clip":
        return [math.exp(min(max(v, low), high) - v) for v in value]
    if action == "drop":
        lost = {c for c, is_bad in zip(containers, bad, strict=True) if is_bad}
        bad = [c in lost for c in containers]
    return [0.0 if is_bad else 1.0 for is_bad in bad]


@pytest.mark.parametrize("aggregate", ["mean", "sum", "max"])
@pytest.mark.parametrize("metric", ["ratio", "k1", "k2", "k3"])
@pytest.mark.parametrize("action", ["mask", "drop", "clip"])
@pytest.mark.parametrize("level", ["token", "sequence", "group"])
def test_rejection_equals_a_naive_loop(level, action, metric, aggregate):
    generator = torch.Generator().manual_seed(1)
    trained, rollout = torch.randn(2, 60, generator=generator, dtype=torch.float64) * 0.4
    sequences = torch.arange(12).repeat_interleave(5)
    groups = sequences // 3
    bounds = (0.8, 1.3) if metric == "ratio" else (-0.2, 0.25)
    options = {"level": level, "action": action, "metric": metric, "aggregate": aggregate}
    arguments = {"sequences_N": sequences, "groups_N": groups, "bounds": bounds, **options}
    if action == "clip" and metric != "ratio":
        with pytest.raises(ValueError, match="cannot be clipped"):
            rejection(trained, rollout, **arguments)
        return
    units = {"token": list(range(60)), "sequence": sequences.tolist(), "group": groups.tolist()}
    containers = {"token": units["sequence"], "sequence": units["group"], "group": units["group"]}
    expected = naive_rejection(
        (trained - rollout).tolist(), units[level], containers[level], action, metric, aggregate, bounds
    )
    found = rejection(trained, rollout, **arguments)
    assert found.factors_N.tolist() == pytest.approx(expected, abs=1e-9)
    assert found.rejected_N.tolist() == [factor != 1 for factor in expected]


def test_rejection_of_infinite_ratios_is_finite():
    trained = doubles(-math.inf, math.nan, -1, -1)
    found = rejection(
        trained, doubles(-1, -1, -1, -1), sequences_N=SEQUENCES, groups_N=GROUPS, level="sequence",
        action="mask", metric="k3", aggregate="sum", bounds=(0.0, 0.1),
    )  # fmt: skip
    assert found.factors_N.tolist() == [1.0] * 4


@pytest.mark.parametrize(("each", "bound"), [(-0.2, 0.5), (0.2, 2.0)])
def test_a_long_response_is_clipped_to_the_bound_however_far_it_has_drifted(each, bound):
    rollout, sequences = torch.full((1000,), -2.0), torch.zeros(1000, dtype=torch.int64)
    clipped = rejection(
        rollout + each, rollout, sequences_N=sequences, groups_N=sequences, level="sequence", action="clip",
        metric="ratio", aggregate="sum", bounds=(0.5, 2.0),
    )  # fmt: skip
    weights = importance_weights(
        rollout + each, rollout, sequences, advantages_N=rollout, kind="truncate", level="sequence", low=0.0,
        cap=1e9,
    )  # fmt: skip
    assert (weights.weights_N * clipped.factors_N).tolist() == pytest.approx([bound] * 1000, rel=1e-4)


def token_weights(lengths, aggregation, **options):
    return response_weights(lengths, aggregation, **options).repeat_interleave(lengths)


def test_token_weights_are_those_of_the_four_means():
    lengths, groups = torch.tensor([1, 0, 3, 2]), torch.tensor([0, 0, 0, 1])
    assert token_weights(lengths, "token_mean").tolist() == pytest.approx([1 / 6] * 6, abs=1e-9)
    assert token_weights(lengths, "sequence_mean").tolist() == pytest.approx(
        [1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6], abs=1e-9
    )
    assert token_weights(lengths, "group_mean", groups=groups).tolist() == pytest.approx(
        [1 / 8] * 4 + [1 / 4] * 2, abs=1e-9
    )
    assert token_weights(lengths, "sequence_sum", max_tokens=10).tolist() == pytest.approx(
        [1 / 30] * 6, abs=1e-9
    )
    with pytest.raises(ValueError, match="expected `groups`"):
        token_weights(lengths, "group_mean")


def test_mismatch_metrics_equal_their_formulas():
    d = doubles(*[0.0] * 98, 0.5, -1.0)
    metrics = mismatch_metrics(d - 2, torch.full_like(d, -2), (d.exp()).clamp(max=1.5))
    k3 = (math.exp(0.5) - 1 - 0.5 + math.exp(-1) - 1 + 1) / 100
    assert metrics["mismatch_kl"] == pytest.approx(k3, abs=1e-12)
    assert metrics["logprob_gap_p99"] == pytest.approx(0.5)
    assert metrics["importance_weight/mean"] == pytest.approx((98 + 1.5 + math.exp(-1)) / 100)
    assert metrics["importance_weight/max"] == 1.5
    assert set(mismatch_metrics(d[:0], d[:0], d[:0]).values()) == {0.0}
