"""Names and shapes of versions and checkpoints: those of the model's files, whatever transformers joins."""

import glob

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from protocol.errors import ConfigError
from workers.models.file_layout import file_layout, pieces, split
from workers.models.model import load_causal_lm, replace_weights, stored_names
from workers.models.parts import SpreadPart, TensorPart

SIZED = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTURES = {
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "head_dim": 8},
    "mixtral": {**EXPERTS, "num_local_experts": 4},  # and renamed
    "granitemoe": {**EXPERTS, "num_local_experts": 4},  # renamed alone
}


def saved(path, name):
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZED, **MIXTURES[name]))
    made.save_pretrained(path)
    return made


def content(path):
    return {
        name: tensor
        for file in glob.glob(f"{path}/*.safetensors")
        for name, tensor in load_file(file).items()
    }


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_split_into_the_tensors_of_its_files(tmp_path, name):
    saved(tmp_path, name)
    model, files = load_causal_lm(tmp_path, dtype="float32", device="cpu"), content(tmp_path)
    layout = file_layout(model, stored_names(tmp_path))
    found = split(model.state_dict(), layout)
    assert found.keys() == files.keys()
    assert all(torch.equal(tensor, files[name]) for name, tensor in found.items())
    spread = pieces(model.state_dict(), layout)
    assert {name: (*tensor.shape,) for name, tensor in spread.items()} == {
        n: (*t.shape,) for n, t in files.items()
    }
    assert any(isinstance(tensor, SpreadPart) for tensor in spread.values()) == (name != "granitemoe")
    kept = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    assert all(tensor.untyped_storage().data_ptr() in kept for tensor in found.values())  # nothing is copied


def test_without_files_a_mixture_has_those_that_transformers_would_write(tmp_path):
    made = saved(tmp_path, "qwen3_moe")
    layout = file_layout(made)
    assert layout.keys() == set(stored_names(tmp_path))
    assert layout["model.layers.0.mlp.experts.1.up_proj.weight"] == TensorPart(
        "model.layers.0.mlp.experts.gate_up_proj", expert=1, start=16, count=16
    )


def test_a_dense_model_is_as_it_is(tmp_path):
    shape = {
        "vocab_size": 16,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    made = Qwen3ForCausalLM(Qwen3Config(**shape, num_key_value_heads=1, intermediate_size=16))
    assert not file_layout(made)


def test_files_that_hold_experts_together_are_taken_as_they_are(tmp_path):
    made = saved(tmp_path, "qwen3_moe")
    assert not file_layout(made, made.state_dict().keys())


def test_a_mixture_whose_files_have_names_that_nobody_knows_is_refused(tmp_path):
    made = saved(tmp_path, "qwen3_moe")
    strange = [name.replace("experts.1.", "specialists.1.") for name in stored_names(tmp_path)]
    with pytest.raises(
        ConfigError, match=r"mixture of 4 experts.*lack model\.layers\.0\.mlp\.experts\.1\..*save_pretrained"
    ):
        file_layout(made, strange)


def test_an_engine_takes_experts_one_by_one_or_together_and_none_may_be_missing(tmp_path):
    made = saved(tmp_path, "qwen3_moe")
    layout, files = file_layout(made), content(tmp_path)
    other = AutoModelForCausalLM.from_config(made.config)
    replace_weights(other, files, layout)
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in other.state_dict().items())
    again = AutoModelForCausalLM.from_config(made.config)
    replace_weights(again, made.state_dict(), layout)
    assert all(torch.equal(tensor, made.state_dict()[name]) for name, tensor in again.state_dict().items())
    files.pop(gone := "model.layers.1.mlp.experts.3.gate_proj.weight")
    with pytest.raises(ValueError, match=rf"1 of \d+ weights are missing, first {gone}"):
        replace_weights(other, files, layout)
    files["model.layers.1.mlp.experts.9.gate_proj.weight"] = torch.zeros(16, 32)
    with pytest.raises(ValueError, match=r"1 tensors are not weights of this model, first .*experts\.9"):
        replace_weights(other, files, layout)
