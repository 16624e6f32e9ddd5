"""Loads the tokenizer of a model directory, and finds the tokens that end responses; torch is not needed."""

import json
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError


def load_tokenizer(directory: str) -> Any:
    """The tokenizer of a model directory, which decodes tokens without changes. Raises: ConfigError."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"The model directory {directory!r} has no tokenizer that transformers can load: {error}. "
            "Expected tokenizer.json and tokenizer_config.json; check `model.path`."
        ) from None
    # some families (Llama 3) have it on: `return ' '.join(x)` would come out as `return''.join(x)`
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def stop_tokens_of(directory: str, tokenizer: Any) -> frozenset[int]:
    """The tokens at which an engine ends a response; equal to `stop_tokens` of the loaded model."""
    found = _told_ends(Path(directory))
    if found is None:
        found = tokenizer.eos_token_id
    return frozenset(() if found is None else (found,) if isinstance(found, int) else found)


def _told_ends(directory: Path) -> int | list[int] | None:
    """The end tokens of generation_config.json, else of the model's configuration; None without any."""
    from transformers import AutoConfig, GenerationConfig

    try:
        if (file := directory / "generation_config.json").is_file():
            return json.loads(file.read_bytes()).get("eos_token_id")
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception:  # raised by a library; loading the model reports the error
        return None
    return GenerationConfig.from_model_config(config).eos_token_id
