"""Sampling: what is drawn, from which distribution, with which noise."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.settings import SamplingSettings
from workers.engines.torch import sampling
from workers.engines.torch.sampling import sample, truncated_logprobs, uniform_noise

LARGEST = 1 - 2.0**-52


def reference_logprobs(logits, settings):
    """Temperature, top-k, top-p, renormalise: one row, in plain Python."""
    weights = [math.exp((x - max(logits)) / settings.temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda token: -weights[token])
    if settings.top_k:
        order = order[: settings.top_k]
    total, kept, before = sum(weights[token] for token in order), [], 0.0
    for token in order:
        if before < settings.top_p or settings.top_p == 1:
            kept.append(token)
        before += weights[token] / total
    total = sum(weights[token] for token in kept)
    return [math.log(weights[t] / total) if t in kept else -math.inf for t in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (0, 0.6), (0, 1e-9), (7, 0.8), (99, 0.99)]
)
def test_the_distribution_is_cut_and_renormalised_as_the_plain_reference_does(temperature, top_k, top_p):
    settings = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    logits_BV = torch.randn(20, 33, generator=torch.Generator().manual_seed(1)) * 3
    expected_BV = torch.tensor([reference_logprobs(row, settings) for row in logits_BV.tolist()])
    torch.testing.assert_close(truncated_logprobs(logits_BV, settings), expected_BV, atol=2e-5, rtol=0)


def test_evenly_spread_noise_draws_every_token_in_proportion_to_its_probability():
    count = 10_000
    settings = SamplingSettings(temperature=0.8, top_k=5, top_p=0.95)
    logits_BV = torch.tensor([[0.3, -1.0, 2.0, 0.0, 1.5, -3.0, 0.9]]).expand(count, 7)
    tokens_B, logprobs_B, _ = sample(logits_BV, (torch.arange(count).double() + 0.5) / count, settings)
    expected_V = torch.tensor(reference_logprobs(logits_BV[0].tolist(), settings))
    drawn_V = torch.bincount(tokens_B, minlength=7)
    assert (drawn_V - expected_V.exp() * count).abs().max() <= 1
    torch.testing.assert_close(logprobs_B, expected_V[tokens_B], atol=1e-5, rtol=0)


@pytest.mark.parametrize("noise", [0.0, 0.5, LARGEST])
def test_a_token_of_probability_zero_is_never_drawn(noise):
    logits_BV = torch.full((3, 6), -math.inf)
    logits_BV[0, 3] = 5.0
    logits_BV[1, [2, 4]] = torch.tensor([40.0, -90.0])
    logits_BV[2, [1, 5]] = torch.tensor([0.0, -1e4])
    noise_B = torch.full((3,), noise, dtype=torch.float64)
    tokens_B, logprobs_B, _ = sample(logits_BV, noise_B, SamplingSettings())
    assert torch.isfinite(logprobs_B).all()
    assert tokens_B.tolist() == [3, 2, 1]


def test_greedy_takes_the_largest_logit_and_reports_its_logprob_under_the_untempered_model():
    logits_BV = torch.randn(9, 12, generator=torch.Generator().manual_seed(2))
    settings = SamplingSettings(temperature=0.0, top_k=1, top_p=0.1)
    tokens_B, logprobs_B, _ = sample(logits_BV, torch.zeros(9, dtype=torch.float64), settings)
    assert torch.equal(tokens_B, logits_BV.argmax(-1))
    torch.testing.assert_close(logprobs_B, logits_BV.log_softmax(-1).amax(-1))


def test_noise_depends_on_seed_and_position_only():
    seeds_B, positions_B = np.arange(50) // 5 + 2**53, np.arange(50) % 5
    together_B = uniform_noise(seeds_B, positions_B)
    alone_B = [uniform_noise(seeds_B[i : i + 1], positions_B[i : i + 1])[0] for i in range(50)]
    assert together_B.tolist() == alone_B
    assert len(set(alone_B)) == 50


def test_noise_is_uniform_over_positions_and_over_seeds_and_stays_below_one():
    for seeds_B, positions_B in (
        (np.zeros(100_000, int), np.arange(100_000)),
        (np.arange(100_000), np.zeros(100_000, int)),
        (np.arange(100_000) % 300, np.arange(100_000) // 300),
    ):
        noise_B = uniform_noise(seeds_B, positions_B)
        assert noise_B.min() >= 0
        assert noise_B.max() <= LARGEST
        counts = np.histogram(noise_B, bins=100, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi-square, 99 degrees: exceeded once in 10,000
        assert abs(np.corrcoef(noise_B[:-1], noise_B[1:])[0, 1]) < 0.015


class Sorts(TorchDispatchMode):
    """Counts the rows that are sorted."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.sort:
            self.rows += len(args[0])
        return func(*args, **(kwargs or {}))


def test_top_p_sorts_only_rows_whose_first_tokens_do_not_decide_it(monkeypatch):
    """Peaked, flat and tied rows, and rows of which top-k has left a few, cut as a sort of the whole does."""
    monkeypatch.setattr(sampling, "LEADING", 16)
    draw = torch.Generator().manual_seed(0)
    peaked, flat = 6 * torch.randn(5, 500, generator=draw), 0.1 * torch.randn(2, 500, generator=draw)
    tied = torch.zeros(1, 500)
    tied[0, [3, 7, 400]] = 9.0
    steps = torch.randint(6, (40, 500), generator=draw).float() * 3
    few = peaked.masked_fill(peaked < peaked.topk(3, -1).values[:, -1:], -torch.inf)
    decided = [(peaked, 0.9, 0), (few, 0.9, 0), (flat, 0.9, 2), (tied, 0.9, 0), (tied, 0.5, 1)]
    for logits_BV, top_p, sorts in (*decided, *((steps, top_p, None) for top_p in (1e-9, 0.3, 0.9))):
        settings = SamplingSettings(top_p=top_p)
        with Sorts() as sorted_rows:
            found = truncated_logprobs(logits_BV, settings)
        assert sorts is None or sorted_rows.rows == sorts
        with monkeypatch.context() as whole:
            whole.setattr(sampling, "LEADING", 500)
            assert torch.equal(found, truncated_logprobs(logits_BV, settings))
