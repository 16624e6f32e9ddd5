"""Reads a model's config.json with transformers.

Invariants: nothing is downloaded; an error of transformers becomes one sentence for the user.
"""

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from protocol.errors import ConfigError


def read_model_config(directory: str | Path) -> Any:
    """The configuration. Raises: ConfigError, with transformers' message, if it cannot be read."""
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # a library's: its checks of types raise what is no ValueError
        text = " ".join(str(error).split()).removesuffix(".")
        raise ConfigError(
            f"{Path(directory) / 'config.json'} cannot be read as a model's: {type(error).__name__}: {text}. "
            "Expected a configuration of an architecture that transformers knows; mend it there, or save or "
            "download the model again."
        ) from error
