"""The tokenizer of a model directory; torch is not needed."""

from typing import Any

from protocol.errors import ConfigError


def load_tokenizer(directory: str) -> Any:
    """The tokenizer of a model directory. Raises: ConfigError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"The model directory {directory!r} has no tokenizer that transformers can load: {error}. "
            "Expected tokenizer.json and tokenizer_config.json; check `model.path`."
        ) from None
