"""The folder in which a simulation leaves its results."""

import os
from pathlib import Path

from protocol.errors import ConfigError


def made_folder(output: str) -> Path:
    """The folder of `-o`, made if missing; called before a simulation, which may take hours.

    Raises: ConfigError if it cannot be made, or not be written to.
    """
    folder = Path(output)
    why = "expected a folder that you may write to, or the name of a new one."
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"-o {output} cannot be made: {error.strerror}; {why}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"-o {output} cannot be written to; {why}")
    return folder
