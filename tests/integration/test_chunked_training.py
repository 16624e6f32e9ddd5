"""Train steps whose logits are made in chunks, against steps that make them whole."""

import importlib.util

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.algorithms import ALGORITHMS
from protocol.trainer.adapters import LoraSettings
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import SHAPE, make_batch, model_directory, settings  # noqa: F401 - two are fixtures
from workers.trainer import packed_forward
from workers.trainer.losses import logprobs
from workers.trainer.worker import Trainer

WAYS = {name: options | {"algorithm": name} for name, options in ALGORITHMS.items()} | {
    "entropy": {"entropy_coefficient": 0.1, "minibatches": 2},
    "reference": {"kl_coefficient": 0.1, "minibatches": 2},
    "checkpointed": {"activation_checkpointing": True},
}
SAMPLE = ("gspo", "ppo", "entropy", "reference")
ROWS = 5  # of logits at a time


@pytest.fixture
def both(monkeypatch, settings):  # noqa: F811
    """(metrics, weights) after two steps with whole logits, and with logits in chunks."""

    def run(directory, temperature=0.8, is_chunked=True, **options):
        chunked, passes = packed_forward.head_logprobs, []
        monkeypatch.setattr(
            packed_forward, "head_logprobs", lambda *a, **k: passes.append(1) or chunked(*a, **k)
        )
        found = []
        for elements in (1 << 24, ROWS * SHAPE["vocab_size"]):
            monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", elements)
            trainer = Trainer(settings(temperature=temperature, **options), str(directory))
            metrics = [trainer.train_step(*make_batch(seed=v, train_version=v)) for v in range(2)]
            found.append((metrics, state_of(trainer)))
            assert bool(passes) == (is_chunked and len(found) == 2)
        return found

    return run


def assert_alike(found, *, within=1e-5):
    (metrics, weights), (others, changed) = found
    for ours, theirs in zip(metrics, others, strict=True):
        assert theirs == pytest.approx(ours, abs=within, rel=1e-4)
    assert all(torch.allclose(weights[name], other, atol=within) for name, other in changed.items())


@pytest.mark.parametrize(
    "way", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.thorough) for name in WAYS]
)
def test_every_algorithm_takes_the_same_steps(way, both, model_directory):  # noqa: F811
    # eps as large as gradients: else AdamW's first step is their sign, and rounding decides it near 0
    assert_alike(both(model_directory, adam_eps=1e-2, **WAYS[way]))


def test_a_forward_pass_in_bfloat16_differs_by_rounding_alone(both, model_directory):  # noqa: F811
    ((plain, _), _), ((chunked, _), _) = both(model_directory, forward_dtype="bfloat16")
    for name in ("loss", "grad_norm", "entropy"):
        assert chunked[name] == pytest.approx(plain[name], abs=5e-3, rel=5e-3)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("targets", [(), ("q_proj", "lm_head")])
def test_an_adapter_trains_alike_and_one_at_the_head_with_whole_logits(both, tmp_path, targets, caplog):
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(tmp_path / "model")
    lora = LoraSettings(rank=2, target_modules=targets)
    found = both(tmp_path / "model", adam_eps=1e-2, lora=lora, is_chunked=not targets)
    assert_alike(found)
    assert ("made at once, not in chunks" in caplog.text) == bool(targets)
