"""The weights that a run begins from, by which a resumed run notices that they were replaced.

Invariant: only files are compared that are there now; whatever loads the model says what is missing.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from controller.config.models import Config
from controller.data import fingerprints

WEIGHT_FILES = ("*.safetensors", "*.bin")


def initial_weights(config: Config) -> dict[str, list[object]]:
    """[bytes, digest] of each weight file of the model, by name.

    Empty for a model that the run makes, which lies in its folder. Files that cannot be read are left out.
    """
    found: dict[str, list[object]] = {}
    if config.model.factory is None:
        for path in sorted(path for some in WEIGHT_FILES for path in Path(config.model.path).glob(some)):
            with suppress(OSError):
                found[path.name] = fingerprints.of_file(str(path))
    return found


def replaced_weights(was: Mapping[str, Any], config: Config) -> str | None:
    """How the weights of the model differ from those that the run began from, in words; None if they do not.

    `was`: `initial_weights` then; empty if the run's release wrote none.
    """
    now = initial_weights(config) if was else {}
    same = [name for name in now if isinstance(was.get(name), list) and len(was[name]) == len(now[name])]
    before, after = ({"files": {name: one[name] for name in same}} for one in (was, now))
    return fingerprints.difference(before, after)
