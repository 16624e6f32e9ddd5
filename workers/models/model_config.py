"""Reads a model's config.json as transformers understands it.

Invariants: nothing is downloaded; whatever transformers objects to is the user's to mend, in one sentence.
"""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from protocol.errors import ConfigError


def read_model_config(directory: str | Path) -> Any:
    """Raises: ConfigError, with the key and what was found, if transformers does not take it."""
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # a library's: its checks of types raise what is no ValueError
        text = " ".join(str(error).split()).removesuffix(".")
        raise ConfigError(
            f"{Path(directory) / 'config.json'} cannot be read as a model's: {type(error).__name__}: {text}. "
            "Expected a configuration of an architecture that transformers knows; mend it there, or save or "
            "download the model again."
        ) from error
