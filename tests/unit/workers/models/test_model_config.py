"""A config.json that transformers does not take is told in a sentence, with the key."""

import json

import pytest
from transformers import LlamaConfig

from protocol.errors import ConfigError
from workers.models.model import load_causal_lm
from workers.models.model_config import read_model_config


@pytest.mark.parametrize(
    ("key", "value", "said"), [("hidden_size", None, "NoneType"), ("intermediate_size", "x", "'x'")]
)
def test_a_key_of_another_type_is_named_with_what_was_found(tmp_path, key, value, said):
    LlamaConfig(hidden_size=16, num_attention_heads=2).save_pretrained(tmp_path)
    assert read_model_config(tmp_path).hidden_size == 16
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ConfigError, match=rf"config\.json cannot be read .*'{key}'.*{said}.*mend it there"):
        load_causal_lm(tmp_path, dtype="float32", device="cpu")
