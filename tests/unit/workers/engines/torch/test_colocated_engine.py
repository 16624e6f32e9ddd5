"""An engine that leaves its device: what it has there, and that it goes on as if it had stayed."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.support.allocation import allocation, live_bytes
from tests.support.engine_answers import settings
from workers.engines.interface import Generation
from workers.engines.made_engine import make_engine
from workers.models.storages import bytes_of

SHAPE = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "initializer_range": 0.2,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": [2, 9],
}  # fmt: skip
ADDED = [Generation((group, 0, 0), [3 + group, 5, 7], [], 30, group) for group in range(4)]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("shared-device-model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=request.param)).save_pretrained(path)
    return str(path)


def engine_of(directory, tmp_path, *, is_colocated):
    told = settings(str(tmp_path), dtype="float32", forward="float32")
    return make_engine(told.model_copy(update={"is_colocated": is_colocated}), directory)


def sampled(engine):
    for generation in ADDED:
        engine.add(generation)
    found = []
    while engine.is_busy():
        found += [(one.key, one.token, one.logprob) for one in engine.step()]
    return found


def test_a_released_engine_has_no_weights_and_no_kv_and_samples_the_same_after_the_next_pull(
    directory, tmp_path
):
    plain = engine_of(directory, tmp_path, is_colocated=False)
    weights = {name: tensor.clone() for name, tensor in plain.read_weights().items()}
    expected, size = sampled(plain), bytes_of(weights.values())
    engine = engine_of(directory, tmp_path, is_colocated=True)
    buffers = bytes_of(engine._model.buffers())
    assert bytes_of(engine._model.parameters()) == 0, "before its first pull"
    for version in (1, 2):
        engine.load_weights(version, weights)
        assert bytes_of(engine._model.parameters()) == size
        assert sampled(engine) == expected
        cache = bytes_of([*engine._forward.cache.tensors(), *engine._prefixes.tensors()])
        assert cache > 0
        found = engine.release()
        assert found == (size + buffers + cache, buffers)
        assert bytes_of(engine._model.parameters()) == 0


def test_what_an_engine_allocates_while_it_has_the_device_is_gone_after_it(directory, tmp_path):
    weights = engine_of(directory, tmp_path, is_colocated=False).read_weights()
    engine = engine_of(directory, tmp_path, is_colocated=True)
    size = bytes_of(weights.values())

    def turn():
        engine.load_weights(1, weights)
        sampled(engine)
        engine.release()

    found = live_bytes(turn)
    assert found.peak > size, "counted where it is allocated: weights, KV cache, what passes make"
    assert found.kept < 0.02 * size


def test_an_engine_is_made_without_memory_for_its_weights(directory, tmp_path):
    weights = engine_of(directory, tmp_path, is_colocated=False).read_weights()
    found = allocation(lambda: engine_of(directory, tmp_path, is_colocated=True))
    largest = max(weight.numel() * weight.element_size() for weight in weights.values())
    assert found.peak < 2 * largest < 0.5 * bytes_of(weights.values())


def test_refused_weights_leave_a_released_engine_released(directory, tmp_path):
    weights = dict(engine_of(directory, tmp_path, is_colocated=False).read_weights())
    engine = engine_of(directory, tmp_path, is_colocated=True)
    del weights["model.norm.weight"]
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        engine.load_weights(1, weights)
    assert bytes_of(engine._model.parameters()) == 0
    assert engine.policy_version == 0
