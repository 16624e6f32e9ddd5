"""Mixtures in the trainer: versions and checkpoints are like their files, adapters have no experts."""

import importlib.util
import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from protocol.errors import ConfigError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)
from protocol.trainer.adapters import LoraSettings
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch
from workers.engines.interface import Generation
from workers.engines.torch.engine import TorchEngine, make_engine
from workers.models.lora import target_layers, tensor_names
from workers.models.lora_layers import add_adapter
from workers.models.model import load_causal_lm, stored_names
from workers.trainer.packed_forward import forward_row, whole_row
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.worker import Trainer
from workers.weights.tensors import read

SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


SHARED = {
    "vocab_size": 16, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 40, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "initializer_range": 0.2, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
"""One layer is dense; the other has an expert that every token passes."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).save_pretrained(path)
    assert any(".experts.3." in name for name in stored_names(path))  # as on the Hub
    return str(path)


def settings(tmp_path, rank=0):
    return WorkerSettings(
        run_dir=str(tmp_path),
        seed=0,
        steps=1,
        model=ModelSettings(),
        rollout=RolloutSettings(),
        reward=RewardSettings(),
        trainer=TrainerSettings(device="cpu", lr=1e-2, lora=LoraSettings(rank=rank)),
    )


def test_a_version_and_a_checkpoint_of_one_have_the_names_of_its_files(directory, tmp_path):
    trainer = Trainer(settings(tmp_path), directory)
    names, before = set(stored_names(directory)), load_file(f"{directory}/model.safetensors")
    trainer.train_step(*make_batch())
    publisher = Publisher(settings(tmp_path), trainer.ranks, trainer.tensors_for_publish())
    published = publisher.seal(publisher.write(1, trainer.tensors_for_publish()))
    version = read(published.location, published.digest)
    assert version.keys() == names
    moved = "model.layers.0.mlp.experts.2.up_proj.weight"
    assert not torch.equal(version[moved], before[moved])

    path = trainer.save_checkpoint(1)
    exported = load_file(path / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = load_causal_lm(directory, dtype="float32", device="cpu")
    engine = TorchEngine(model, RolloutSettings(max_running=2), stop_tokens=[])
    engine.load_weights(1, version)
    held = engine.read_weights()
    for found in (exported, held):
        assert found.keys() == names
        assert all(torch.equal(found[name], version[name]) for name in names)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.full_tensor())
    publisher.close()


def test_one_that_was_trained_with_an_auxiliary_loss_generates_and_trains_without_it(directory, tmp_path):
    same = shutil.copytree(directory, tmp_path / "model")
    config = json.loads((same / "config.json").read_text())
    (same / "config.json").write_text(json.dumps(config | {"output_router_logits": True}))
    found = []
    for place in (directory, str(same)):
        engine = make_engine(settings(tmp_path), place)
        engine.add(Generation((0, 0, 0), [3, 4, 5], [], 4, 0))
        tokens = []
        while engine.is_busy():
            tokens += [(item.token, item.logprob) for item in engine.step()]
        found.append((tokens, Trainer(settings(tmp_path), place).train_step(*make_batch())))
    assert found[0] == found[1]


needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@needs_peft
def test_an_adapter_of_one_is_trained_and_the_log_says_that_experts_have_none(directory, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="workers"):
        trainer = Trainer(settings(tmp_path, rank=2), directory)
    assert "The 4 experts of this model get no adapter" in caplog.text
    trainer.train_step(*make_batch())
    published = state_of(trainer)
    assert published
    assert not any("experts" in name for name in published)


@needs_peft
def test_what_peft_refuses_of_a_model_with_a_state_space_stays_refused():
    """Its kernels on a GPU would read the weight of `out_proj` past the adapter."""
    shape = {name: SHAPE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    config = FalconH1Config(**shape, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
                            mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4)  # fmt: skip
    with pytest.raises(ConfigError, match="peft puts no adapter into FalconH1ForCausalLM"):
        add_adapter(FalconH1ForCausalLM(config), LoraSettings(rank=2), seed=0)


@needs_peft
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("targets", [(), ("up_proj",)])
def test_dense_and_shared_layers_of_one_have_adapters_that_engine_and_peft_compute_alike(tmp_path, targets):
    from peft import PeftModel

    torch.manual_seed(0)
    directory, run = str(tmp_path / "model"), tmp_path / "run"
    DeepseekV3ForCausalLM(DeepseekV3Config(**SHARED)).save_pretrained(directory)
    lora = LoraSettings(rank=2, target_modules=targets)
    chosen = settings(run).model_copy(update={"trainer": TrainerSettings(device="cpu", lr=1e-2, lora=lora)})
    trainer = Trainer(chosen, directory)
    for version in range(2):
        trainer.train_step(*make_batch(train_version=version))
    version = state_of(trainer)
    layers = target_layers(AutoModelForCausalLM.from_pretrained(directory), lora)
    assert "model.layers.0.mlp.up_proj" in layers
    assert "model.layers.1.mlp.shared_experts.up_proj" in layers
    assert version.keys() - {"staleflow.model_digest"} == {n for name in layers for n in tensor_names(name)}

    ids = torch.arange(3, 14)
    engine = make_engine(chosen, directory)
    engine.load_weights(2, version)
    path = trainer.save_checkpoint(2)
    with torch.no_grad():
        expected = forward_row(trainer.model, whole_row([ids]))
        plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        assert (plain(ids[None]).logits[0] - expected).abs().max() > 1e-2
        adapted = PeftModel.from_pretrained(plain, str(path))
        again = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        again.load_adapter(str(path))
        for found in (adapted, again, engine._model, adapted.merge_and_unload()):
            assert torch.allclose(found(ids[None]).logits[0], expected, atol=1e-4)
