"""What is read of an adapter's file, and what is refused as no run's."""

import json

import pytest

from controller.host.offline.saved_adapter import lora_of
from protocol.errors import ConfigError
from protocol.trainer.adapters import LoraSettings

TOLD = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": ["k_proj", "q_proj"]}


def told(folder, **changes):
    (folder / "adapter_config.json").write_text(json.dumps({**TOLD, **changes}))
    return lora_of(folder)


def test_width_scale_and_layers_are_read(tmp_path):
    expected = LoraSettings(rank=8, alpha=32.0, target_modules=("k_proj", "q_proj"))
    assert told(tmp_path, use_rslora=False) == expected
    layer = "model.layers.0.mlp.shared_experts.up_proj"
    expected = LoraSettings(rank=8, alpha=32.0, target_modules=("k_proj", "q_proj", layer))
    assert told(tmp_path, target_parameters=[f"{layer}.weight"]) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_rslora": True}, "has use_rslora, which no run trains"),
        ({"peft_type": "IA3"}, "has IA3, which no run trains"),
        ({"target_modules": "all-linear"}, "has target_modules, which no run trains"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "has target_parameters, which no run trains"),
        ({"r": 0}, "has r, which no run trains"),
        ({"r": "wide"}, "cannot be read: ValidationError"),
        ({"lora_alpha": None}, "cannot be read: TypeError"),
    ],
)
def test_what_no_run_trains_is_refused(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        told(tmp_path, **changes)


def test_a_file_that_is_none_is_told(tmp_path):
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read: JSONDecodeError"):
        lora_of(tmp_path)
