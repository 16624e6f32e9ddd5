"""From an engine's tokens over a train step to a warning, if the engine means another distribution."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from controller.core.decisions.training.logprob_drift import LogprobDrift
from tests.support.engine_answers import THRESHOLD, answers, as_batch, settings
from workers.engines.interface import Generation
from workers.trainer.trainer import Trainer

SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "initializer_range": 0.3,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
ADDED = [
    Generation((group, member, 0), [3 + group, 5, 7], [], 30, 10 * group + member)
    for group in range(4)
    for member in range(4)
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(path)
    return str(path)


def warning(directory, tmp_path, *, dtype="float32", minibatches=1, **sampling):
    """What is said after one step of a trainer of the engine's weights, which believes in temperature 1."""
    chosen = settings(str(tmp_path), dtype="float32", forward="float32")
    options = chosen.trainer.model_copy(update={"minibatches": minibatches})
    trainer = Trainer(chosen.model_copy(update={"trainer": options}), directory)
    engine = settings(str(tmp_path), dtype=dtype, forward="float32", **sampling)
    metrics = trainer.train_step(*as_batch(ADDED, answers(engine, directory, ADDED)))
    return LogprobDrift(THRESHOLD).observe(1, metrics)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("temperature", [0.9, 1.1])
def test_another_temperature_is_warned_of(directory, tmp_path, temperature, minibatches):
    words = warning(directory, tmp_path, temperature=temperature, minibatches=minibatches)
    assert f"those of {temperature:.2f} (± 0.00) times the trainer's temperature" in words


@pytest.mark.parametrize("sampling", [{"top_k": 5}, {"top_p": 0.9}])
def test_a_cut_distribution_is_warned_of(directory, tmp_path, sampling):
    assert "what else the engine leaves out" in warning(directory, tmp_path, **sampling)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_is_not(directory, tmp_path, dtype):
    assert warning(directory, tmp_path, dtype=dtype) is None
