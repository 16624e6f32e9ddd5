"""Names that a cluster makes of those of a run, and whether it takes them.

Invariant: pure; what is refused is named with what would do, before anything is written.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from controller.cluster.plan import key_of, roles
from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.wire.security import NAME

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which Kubernetes asks of services
MAX_LABEL = 63
MAX_KEY = 64  # letters of the name of a key, as NAME has it
ENTRY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")  # of a ConfigMap


def require_slurm_names(config: Config) -> None:
    """Refuse a run whose name Slurm or the files of keys do not take. Raises: ConfigError."""
    keys = [key_of(config, role) for role in roles(config)]
    if not all(NAME.fullmatch(key) for key in keys):
        most = MAX_KEY - (max(map(len, keys)) - len(config.run.name))
        raise ConfigError(
            f"run.name is {config.run.name!r}, which names jobs and keys on Slurm; expected at most {most} "
            "letters of A to Z, a to z, digits, `.`, `_` and `-`, the first a letter or digit. Set run.name, "
            f"for example run.name={_fit(config.run.name, r'[^A-Za-z0-9._-]+', most)}."
        )


def require_kubernetes_names(config: Config) -> None:
    """Refuse a run of whose name Kubernetes can make none for its objects. Raises: ConfigError."""
    name, last_node = config.run.name, config.cluster.trainer_nodes - 1
    most = MAX_LABEL - max(len(suffix) for suffix in ("-controller", f"-trainer-{last_node}"))
    if not LABEL.fullmatch(name) or len(name) > most:
        raise ConfigError(
            f"run.name is {name!r}, which names everything of the run on Kubernetes; expected at most {most} "
            "letters of a to z, digits and `-`, the first a letter and the last no `-`. Set run.name, for "
            f"example run.name={_fit(name.lower(), r'[^a-z0-9-]+', most)}."
        )


def require_entries(files: Sequence[Path]) -> None:
    """Refuse a file of whose name no entry of a ConfigMap can be made. Raises: ConfigError."""
    for file in files:
        if not ENTRY.fullmatch(file.name):
            raise ConfigError(
                f"The file {str(file)!r} becomes an entry of a ConfigMap under its name; expected letters, "
                "digits, `.`, `_` and `-`. Rename it, and give its new name."
            )


def _fit(name: str, others: str, most: int) -> str:
    """The name with `-` in the place of other letters, as long as may be."""
    fit = re.sub(others, "-", name).strip("-._")
    return (fit if fit[:1].isalpha() else f"run-{fit}")[:most].strip("-._")
