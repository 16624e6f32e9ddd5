"""What is told of a directory is where the loaded model's engine stops."""

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from protocol.errors import ConfigError
from workers.models.model import stop_tokens
from workers.models.tokenizer import load_tokenizer, stop_tokens_of


@pytest.mark.parametrize(
    ("of_model", "of_generation", "expected"),
    [(1, {"eos_token_id": [3, 4]}, {3, 4}), (1, {"top_k": 5}, {2}), (1, None, {1}), (None, None, {2})],
)
def test_the_tokens_of_a_directory_are_those_of_its_model(tmp_path, of_model, of_generation, expected):
    shape = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    shape |= {"num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 8}
    Qwen3ForCausalLM(Qwen3Config(**shape, eos_token_id=of_model)).save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "end": 2}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    if of_generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(of_generation))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded.generation_config, GenerationConfig)
    assert set(stop_tokens(loaded.generation_config, tmp_path)) == expected
    assert stop_tokens_of(str(tmp_path), load_tokenizer(str(tmp_path))) == expected


def test_a_directory_without_a_model_ends_as_its_tokenizer_says(tmp_path):
    words = Tokenizer(models.WordLevel({"a": 0, "end": 1}, unk_token="a"))
    for end, expected in (("end", {1}), (None, set())):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=end)
        assert stop_tokens_of(str(tmp_path), tokenizer) == expected


@pytest.mark.parametrize("told", ["<end>", [1, "<end>"], True, {"id": 1}])
def test_an_end_that_is_no_token_id_is_refused_in_words(tmp_path, told):
    words = Tokenizer(models.WordLevel({"a": 0, "end": 1}, unk_token="a"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
    with pytest.raises(ConfigError, match=r"as `eos_token_id`.* expected the id of the token"):
        stop_tokens_of(str(tmp_path), PreTrainedTokenizerFast(tokenizer_object=words))
    with pytest.raises(ConfigError, match=r"as `eos_token_id`.* expected the id of the token"):
        stop_tokens(GenerationConfig(eos_token_id=told), tmp_path)
