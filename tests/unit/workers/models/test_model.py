"""Loading models: what is refused, and in which words."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, T5Config

from protocol.errors import ConfigError
from workers.models.model import load_causal_lm, pick_device


@pytest.fixture
def directory(tmp_path):
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_model_comes_in_evaluation_mode_with_the_precision_and_attention_asked_for(directory):
    model = load_causal_lm(directory, dtype="bfloat16", device="cpu", attention="eager")
    assert not model.training
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="There is no model at"):
        load_causal_lm(tmp_path / "nowhere", dtype="float32", device="cpu")


def test_a_model_of_another_kind_is_refused(tmp_path):
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded as a causal language model"):
        load_causal_lm(tmp_path, dtype="float32", device="cpu")


def test_a_pointer_in_the_place_of_weights_is_refused_in_words(directory):
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match=r"cannot be loaded as a causal language model.*header"):
        load_causal_lm(directory, dtype="float32", device="cpu")


def test_absent_weights_are_refused_rather_than_made_up(directory):
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights of a LlamaForCausalLM, .* model\.norm"):
        load_causal_lm(directory, dtype="float32", device="cpu")


def test_devices_that_do_not_exist_are_refused():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="'cuda:99' was asked for"):
        pick_device("cuda:99")
    with pytest.raises(ConfigError, match="'gpu' is unknown"):
        pick_device("gpu")


def test_a_gpu_that_torch_does_not_see_is_no_reason_to_take_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert pick_device("auto") == torch.device("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match=r"is 3 in this process, and torch, .* CUDA 12\.8, sees no GPU"):
        pick_device("auto")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert pick_device("auto") == torch.device("cpu"), "a build for CPUs was installed on purpose"


def test_a_gpu_with_a_number_is_that_of_the_process(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert [pick_device("cuda:1"), pick_device("cuda"), pick_device("cpu")][0] == torch.device("cuda:1")
    assert taken == [torch.device("cuda:1")]
