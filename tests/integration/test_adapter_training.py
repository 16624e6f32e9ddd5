"""An adapter: trained alone, published alone, merged by the engine into exactly what the trainer has."""

import importlib.util
import json
import logging
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from protocol.errors import ConfigError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
from protocol.trainer.adapters import LoraSettings
from tests.unit.workers.trainer.test_trainer import on_policy
from workers.engines.interface import Generation
from workers.engines.torch.engine import make_engine
from workers.models.lora import DIGEST, MergedAdapter, model_digest, target_layers, tensor_names
from workers.models.lora_layers import without_adapter
from workers.trainer.checkpoints import newest_checkpoint
from workers.trainer.worker import Trainer, make_publisher, make_trainer
from workers.weights.tensors import read

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is not installed: pip install -e '.[workers,lora]'"
)
SHAPE = {
    "vocab_size": 16, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "initializer_range": 0.2,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
RANK = 2


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return str(directory)


@pytest.fixture
def settings(tmp_path):
    def make(dtype="float32", rank=RANK, **trainer):
        trainer = {"lr": 1e-2, "max_tokens_per_microbatch": 64, "minibatches": 2} | trainer
        return WorkerSettings(
            run_dir=str(tmp_path),
            seed=0,
            steps=9,
            model=ModelSettings(dtype=dtype),
            rollout=RolloutSettings(max_running=4, max_prompt_tokens=16, max_response_tokens=16),
            reward=RewardSettings(),
            weights=WeightsSettings(directory=str(tmp_path / "versions")),
            trainer=TrainerSettings(device="cpu", lora=LoraSettings(rank=rank), **trainer),
        )

    return make


def steps(trainer, count):
    """Train on batches of the trainer's own; the metrics."""
    found = []
    for _ in range(count):
        version = trainer.policy_version
        found.append(trainer.train_step(*on_policy(trainer, seed=version, train_version=version)))
    return found


@needs_peft
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_the_engine_computes_what_peft_computes_after_every_update(
    model_directory, settings, dtype, bound, request
):
    trainer = Trainer(settings(dtype), model_directory)
    publisher = make_publisher(settings(dtype), trainer)
    request.addfinalizer(publisher.close)
    engine = make_engine(settings(dtype), model_directory)
    kept = {name: tensor.clone() for name, tensor in engine.read_weights().items()}
    prompt = list(range(3, 13))
    for version in range(5):
        published = publisher.seal(publisher.write(trainer.policy_version, trainer.tensors_for_publish()))
        tensors = read(*published[:2])
        engine.load_weights(version, tensors)
        found = {}
        for seed in range(4):
            engine.add(Generation((0, seed, version), prompt, [], 12, seed))
        while engine.is_busy():
            for item in engine.step():
                found.setdefault(item.key, []).append(item)
        path = trainer.save_checkpoint(version)
        plain = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
        plain.load_adapter(str(path))  # by transformers and peft, from the exported files
        for items in found.values():
            new = [item.token for item in items]
            logits = plain(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)[range(len(new)), new]
            assert (expected - torch.tensor([item.logprob for item in items])).abs().max() < bound
        for name, weight in engine.read_weights().items():
            a, b = (tensors.get(part) for part in tensor_names(name.removesuffix(".weight")))
            whole = kept[name].float()
            whole = whole if a is None else torch.addmm(whole, b.float(), a.float(), alpha=32.0 / RANK)
            assert torch.equal(weight, whole.to(weight.dtype))
        steps(trainer, 1)
    assert not torch.equal(weight, kept[name]) or "norm" in name


@needs_peft
def test_a_version_is_a_small_share_of_the_model_and_only_the_adapter_learns(
    model_directory, settings, caplog, request
):
    with caplog.at_level(logging.INFO):
        trainer = Trainer(settings(), model_directory)
        publisher = make_publisher(settings(), trainer)
    request.addfinalizer(publisher.close)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    whole = sum(t.nbytes for t in load_file(f"{model_directory}/model.safetensors").values())
    published = publisher.seal(publisher.write(trainer.policy_version, trainer.tensors_for_publish()))
    adapter = read(*published[:2])
    assert sum(t.nbytes for t in adapter.values()) < 0.15 * whole
    assert published.size_bytes < 0.2 * whole
    assert f"{published.size_bytes} bytes" in caplog.text
    (metrics,) = steps(trainer, 1)
    assert metrics["grad_norm"] > 0
    changed = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {name for name in before if ".lora_" in name}
    held = {id(p) for group in trainer._optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for n, p in trainer.model.named_parameters() if ".lora_" in n}
    assert len(adapter) - 1 == len(held) == 2 * 7 * SHAPE["num_hidden_layers"]


@needs_peft
def test_a_trainer_goes_on_from_a_checkpoint_as_if_nothing_had_happened(model_directory, settings, tmp_path):
    first = Trainer(settings(), model_directory)
    steps(first, 2)
    path = first.save_checkpoint(2)
    names = {file.name for file in path.iterdir()}
    assert names == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "trainer",
        ".complete",
    }
    state = load_file(path / "trainer" / "state.safetensors")
    assert all(".lora_" in name or name.startswith("rng.") for name in state)
    assert newest_checkpoint(path.parent) == path
    second = make_trainer(settings(), model_directory)
    assert second.policy_version == 2
    assert steps(second, 2) == steps(first, 2)
    ours, theirs = (trainer.tensors_for_publish() for trainer in (first, second))
    assert all(
        torch.equal(ours[name].full_tensor(), theirs[name].full_tensor()) for name in ours if name != DIGEST
    )


@needs_peft
def test_the_reference_is_the_model_without_its_adapter_and_costs_no_copy(model_directory, settings):
    trainer = Trainer(settings(kl_coefficient=0.5, minibatches=1), model_directory)
    found = steps(trainer, 3)
    assert found[0]["kl_reference"] == pytest.approx(0, abs=1e-9)
    assert found[2]["kl_reference"] > 1e-4
    assert trainer._reference is trainer.model
    with without_adapter(trainer.model):
        off = on_policy(trainer)
    initial = on_policy(Trainer(settings(rank=0), model_directory))
    found, expected = (np.frombuffer(frames[2], dtype="<f4") for _, frames in (off, initial))
    assert np.allclose(found, expected, atol=1e-5)
    assert not np.allclose(np.frombuffer(on_policy(trainer)[1][2], dtype="<f4"), expected, atol=1e-2)


@needs_peft
def test_a_critic_may_learn_beside_an_adapter(model_directory, settings):
    trainer = Trainer(settings(algorithm="ppo", critic_lr=1e-2), model_directory)
    steps(trainer, 1)
    trainer.save_checkpoint(1)
    second = make_trainer(settings(algorithm="ppo", critic_lr=1e-2), model_directory)
    assert steps(second, 1) == steps(trainer, 1)


@needs_peft
def test_frozen_weights_have_the_precision_of_the_forward_pass_and_the_adapter_float32(
    model_directory, settings
):
    trainer = Trainer(settings(forward_dtype="bfloat16"), model_directory)
    kinds = {".lora_" in name: p.dtype for name, p in trainer.model.named_parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    assert steps(trainer, 1)[0]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (("q_proj", "w1"), "names w1, which is no linear layer.*down_proj"),
        (("lm_head",), "lm_head, which shares its weight"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_named(model_directory, chosen, words):
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    with pytest.raises(ConfigError, match=words):
        target_layers(model, LoraSettings(rank=1, target_modules=chosen))
    named = target_layers(model, LoraSettings(rank=1, target_modules=("self_attn.q_proj",)))
    assert list(named) == [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]


def version_of(model, directory, *, rank=RANK):
    """Some version of an adapter."""
    tensors = {DIGEST: model_digest(directory)}
    for name, layer in target_layers(model, LoraSettings(rank=rank)).items():
        a, b = tensor_names(name)
        tensors |= {a: torch.randn(rank, layer.in_features), b: torch.randn(layer.out_features, rank)}
    return tensors


@pytest.mark.parametrize("wrong", ["missing", "surplus", "misshapen", "of another model"])
def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(
    model_directory, settings, tmp_path, wrong
):
    engine = make_engine(settings(), model_directory)
    tensors = version_of(engine._model, model_directory)
    last = list(tensors)[-1]
    if wrong == "missing":
        del tensors[last]
    elif wrong == "surplus":
        tensors["extra"] = tensors[last]
    elif wrong == "misshapen":
        tensors[last] = tensors[last][:1]
    else:
        save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
        tensors[DIGEST] = model_digest(tmp_path)
    before = {name: tensor.clone() for name, tensor in engine.read_weights().items()}
    words = {"of another model": "digest"}.get(wrong, "missing|no part|expected floating")
    with pytest.raises(ValueError, match=words):
        engine.load_weights(1, tensors)
    assert engine.policy_version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.read_weights().items())


def test_merging_twenty_adapters_leaves_no_trace_of_the_first_nineteen(model_directory):
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    once = AutoModelForCausalLM.from_pretrained(model_directory)
    lora = LoraSettings(rank=RANK)
    merged, fresh = (MergedAdapter(one, lora, model_directory) for one in (model, once))
    torch.manual_seed(1)
    for _ in range(20):
        tensors = version_of(model, model_directory) | {DIGEST: model_digest(model_directory)}
        merged.load(tensors)
    fresh.load(tensors)
    assert all(
        torch.equal(one, other) for one, other in zip(model.parameters(), once.parameters(), strict=True)
    )


def test_a_machine_without_the_models_weights_is_refused_in_words(model_directory, settings, tmp_path):
    from shutil import copyfile

    from protocol.model_files import MARK

    copyfile(f"{model_directory}/config.json", tmp_path / "config.json")
    (tmp_path / MARK).touch()
    with pytest.raises(ConfigError, match="an adapter, begin from them"):
        make_engine(settings(), str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen3"


def test_a_trainer_without_peft_says_what_to_install(model_directory, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"peft cannot be imported here.*pip install -e"):
        Trainer(settings(), model_directory)
