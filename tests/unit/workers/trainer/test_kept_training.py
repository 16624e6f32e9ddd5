"""From an engine that cuts to importance weights of 1: interrupted, moved, KV kept, under other weights."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.support.engine_answers import answers, as_batch, settings
from workers.engines.interface import Generation
from workers.rollout.worker import make_engine
from workers.trainer.trainer import Trainer

SHAPE = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "initializer_range": 0.2,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": [2, 9],
}  # fmt: skip
ADDED = [
    Generation((group, member, 0), [3 + group, 5, 7], [], 30, 10 * group + member)
    for group in range(6)
    for member in range(4)
]
WAYS = [
    {"top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.1},
    {"min_tokens": 12},
    {"top_p": 0.8, "top_k": 20, "min_p": 0.02, "min_tokens": 12, "temperature": 0.7},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("cut-model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(path)
    return str(path)


def trained(tmp_path, directory, found, **sampling):
    chosen = settings(str(tmp_path), dtype="float32", forward="float32", **sampling)
    return Trainer(chosen, directory).train_step(*as_batch(ADDED, found, is_cut=True))


@pytest.mark.parametrize("sampling", WAYS)
def test_with_equal_weights_on_both_sides_every_importance_weight_is_1(tmp_path, directory, sampling):
    engine = settings(str(tmp_path), dtype="float32", forward="float32", **sampling)
    found = answers(engine, directory, ADDED)
    metrics = trained(tmp_path, directory, found, **sampling)
    assert metrics["importance_weight/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["importance_weight/max"] == pytest.approx(1, abs=1e-4)
    assert metrics["nonfinite_log_ratios"] == 0
    if "min_tokens" in sampling:
        assert min(map(len, found)) >= 12
        assert any(len(sampled) < 30 for sampled in found), "none has met a stop token: no test"


def until(engine, steps):
    found = {}
    for _ in range(steps):
        for item in engine.step():
            found.setdefault(item.key, []).append(item)
    return found


def test_a_response_that_moves_to_another_engine_has_the_kept_sets_of_both(tmp_path, directory):
    sampling = {"top_p": 0.8, "top_k": 20, "min_tokens": 12}
    chosen = settings(str(tmp_path), dtype="float32", forward="float32", **sampling)
    first, second = make_engine(chosen, directory), make_engine(chosen, directory)
    for generation in ADDED:
        first.add(generation)
    begun = until(first, 9)
    first.abort([generation.key for generation in ADDED])
    for g in ADDED:
        sampled = [item.token for item in begun[g.key]]
        second.add(Generation(g.key, g.prompt_tokens, sampled, 30 - len(sampled), g.seed))
    ended = until(second, 30)
    found = [begun[g.key] + ended[g.key] for g in ADDED]
    assert [[item.token for item in sampled] for sampled in found] == [
        [item.token for item in sampled] for sampled in answers(chosen, directory, ADDED)
    ]
    metrics = trained(tmp_path, directory, found, **sampling)
    assert metrics["importance_weight/max"] == pytest.approx(1, abs=1e-4)


def test_under_other_weights_with_kv_kept_the_mean_weight_is_still_1(tmp_path, directory):
    """E[p/q] = 1 over the set that q was drawn from, whatever p is: the mask has to be the engine's own."""
    chosen = settings(str(tmp_path), dtype="float32", forward="float32", top_p=0.7)
    engine = make_engine(chosen, directory)
    added = [Generation((g, m, 0), [3 + g % 50, 5], [], 30, 100 * g + m) for g in range(60) for m in range(2)]
    for generation in added:
        engine.add(generation)
    found = until(engine, 4)
    moved = {name: tensor.clone() for name, tensor in engine.read_weights().items()}
    draw = torch.Generator().manual_seed(1)
    for tensor in moved.values():
        tensor += 0.05 * tensor.std() * torch.randn(tensor.shape, generator=draw) if tensor.dim() > 1 else 0
    engine.load_weights(1, moved)
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append(item)
    sampled = [found[generation.key] for generation in added]
    trainer = Trainer(chosen, directory)
    metrics = trainer.train_step(*as_batch(added, sampled, is_cut=True))
    assert metrics["engine/cut"] == pytest.approx(0, abs=4 * metrics["engine/cut_error"])
    assert 0 < metrics["engine/cut_error"] < 0.01
    unmasked = Trainer(chosen, directory).train_step(*as_batch(added, sampled))
    assert unmasked["engine/cut"] > 0.1
