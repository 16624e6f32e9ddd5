"""What an engine that means another distribution looks like from the trainer's side, on drawn tokens."""

import math

import pytest
import torch

from workers.trainer.losses import engine_metrics

COUNT, VOCABULARY = 4000, 30


def drawn(*, temperature=1.0, keep=VOCABULARY, noise=0.0, moved=0.0, seed=0, scale=2.0):
    """Metrics of tokens of an engine that divides by this temperature and keeps the likeliest; `noise` is
    rounding of its logits, `moved` how far the trainer's have moved since."""
    draw = torch.Generator().manual_seed(seed)

    def normal(spread):
        return spread * torch.randn(COUNT, VOCABULARY, generator=draw, dtype=torch.float64)

    logits = normal(scale)
    sampled = (logits + normal(noise)) / temperature
    least = sampled.topk(keep).values[:, -1:]
    sampled = sampled.masked_fill(sampled < least, -math.inf).log_softmax(-1)
    tokens = torch.multinomial(sampled.exp(), 1, generator=draw)
    trained = (logits + normal(moved)).log_softmax(-1)
    entropy = torch.special.entr(trained.exp()).sum(-1)
    return engine_metrics(
        trained.gather(-1, tokens)[:, 0],
        sampled.gather(-1, tokens)[:, 0],
        entropy,
        is_fresh_N=torch.ones(COUNT, dtype=torch.bool),
    )


@pytest.mark.parametrize("temperature", [0.5, 0.9, 0.95, 1.0, 1.1, 2.0])
def test_the_temperature_is_found_out(temperature):
    found = drawn(temperature=temperature)
    assert found["engine/temperature"] == pytest.approx(temperature, rel=0.1 * abs(temperature - 1) + 1e-6)
    assert found["engine/fresh_tokens"] == COUNT


def test_how_far_engine_and_trainer_are_apart_is_told_of_fresh_tokens_alone():
    sampled = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0])
    trained = torch.tensor([-1.1, -2.0, -3.2, 0.0, 0.0])
    fresh = torch.tensor([True, True, True, False, False])
    found = engine_metrics(trained, sampled, torch.ones(5), is_fresh_N=fresh)
    expected = [math.exp(d) - 1 - d for d in (-0.1, 0.0, -0.2)]
    assert found["engine/fresh_kl"] == pytest.approx(sum(expected) / 3, rel=1e-4)
    assert found["engine/fresh_tokens"] == 3


def test_an_engine_of_which_no_temperature_makes_sense_is_still_told_to_be_apart():
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    found = engine_metrics(logprobs, -logprobs / 3, torch.ones(4), is_fresh_N=torch.ones(4, dtype=torch.bool))
    assert found["engine/fresh_kl"] > 1
    assert "engine/temperature" not in found


@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_neither_another_temperature_nor_a_cut(noise, seed):
    found = drawn(noise=noise, seed=seed)
    assert found["engine/temperature"] == pytest.approx(1, abs=0.01 + 4 * found["engine/temperature_error"])
    assert found["engine/cut"] == pytest.approx(0, abs=5 * found["engine/cut_error"])


@pytest.mark.parametrize("keep", [2, 5, 15])
def test_what_is_cut_off_is_the_probability_that_the_trainer_gives_it(keep):
    found, draw = drawn(keep=keep, scale=1.0), torch.Generator().manual_seed(0)
    probabilities = torch.randn(COUNT, VOCABULARY, generator=draw, dtype=torch.float64).softmax(-1)
    lost = 1 - probabilities.topk(keep).values.sum(-1).mean().item()
    assert found["engine/cut"] == pytest.approx(lost, abs=5 * found["engine/cut_error"])


def test_a_policy_that_has_moved_is_not_a_cut():
    found = drawn(moved=0.5)
    assert abs(found["engine/cut"]) < 4 * found["engine/cut_error"] < 0.1


def test_selection_of_tokens_by_what_they_are_does_not_bias_the_temperature():
    """Short responses come first, so their last tokens are found more often among fresh ones."""
    draw = torch.Generator().manual_seed(0)
    trained = (2 * torch.randn(COUNT, VOCABULARY, generator=draw, dtype=torch.float64)).log_softmax(-1)
    sampled = (trained / 0.9).log_softmax(-1)
    tokens = torch.multinomial(sampled.exp(), 1, generator=draw)
    found = engine_metrics(
        trained.gather(-1, tokens)[:, 0],
        sampled.gather(-1, tokens)[:, 0],
        torch.special.entr(trained.exp()).sum(-1),
        is_fresh_N=tokens[:, 0] < 5,
    )
    assert found["engine/temperature"] == pytest.approx(0.9, abs=0.02)


def test_without_fresh_tokens_nothing_is_said_of_the_temperature():
    some = torch.full((10,), -1.0)
    none = torch.zeros(10, dtype=torch.bool)
    assert engine_metrics(some, some, some, is_fresh_N=none).keys() == {"engine/cut", "engine/cut_error"}
    assert engine_metrics(some, some, some, is_fresh_N=~none).keys() == {"engine/cut", "engine/cut_error"}
    assert engine_metrics(some[:0], some[:0], some[:0], is_fresh_N=none[:0]) == {}
