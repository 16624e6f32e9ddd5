"""Checks that a cluster accepts the names of jobs, keys and files of a run.

Invariant: pure; a name is refused before any file is written, with a name that would be accepted.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from controller.cluster.plan import key_of, roles
from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.wire.security import NAME

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, as Kubernetes requires for services
MAX_LABEL = 63
MAX_KEY = 64  # letters of a key's name, as in NAME
ENTRY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")  # of a ConfigMap


def require_slurm_names(config: Config) -> None:
    """Refuse a run name that Slurm or key files do not accept. Raises: ConfigError."""
    keys = [key_of(config, role) for role in roles(config)]
    if not all(NAME.fullmatch(key) for key in keys):
        most = MAX_KEY - (max(map(len, keys)) - len(config.run.name))
        raise ConfigError(
            f"run.name is {config.run.name!r}, which names jobs and keys on Slurm; expected at most {most} "
            "letters of A to Z, a to z, digits, `.`, `_` and `-`, the first a letter or digit. Set run.name, "
            f"for example run.name={_fit(config.run.name, r'[^A-Za-z0-9._-]+', most)}."
        )


def require_kubernetes_names(config: Config) -> None:
    """Refuse a run name from which no names of Kubernetes objects can be made. Raises: ConfigError."""
    name, last_node = config.run.name, config.cluster.trainer_nodes - 1
    most = MAX_LABEL - max(len(suffix) for suffix in ("-controller", f"-trainer-{last_node}"))
    if not LABEL.fullmatch(name) or len(name) > most:
        raise ConfigError(
            f"run.name is {name!r}, which names everything of the run on Kubernetes; expected at most {most} "
            "letters of a to z, digits and `-`, the first a letter and the last no `-`. Set run.name, for "
            f"example run.name={_fit(name.lower(), r'[^a-z0-9-]+', most)}."
        )


def require_entries(files: Sequence[Path]) -> None:
    """Refuse a file whose name cannot be an entry of a ConfigMap. Raises: ConfigError."""
    for file in files:
        if not ENTRY.fullmatch(file.name):
            raise ConfigError(
                f"The file {str(file)!r} becomes an entry of a ConfigMap under its name; expected letters, "
                "digits, `.`, `_` and `-`. Rename it, and give its new name."
            )


def _fit(name: str, others: str, most: int) -> str:
    """The name with `-` in place of other letters, at most `most` letters long."""
    fit = re.sub(others, "-", name).strip("-._")
    return (fit if fit[:1].isalpha() else f"run-{fit}")[:most].strip("-._")
