"""Shared parts of the named rewards: their place, their error, and how one is made.

Invariant: a failure is raised, and never becomes a reward.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import ConfigError
from protocol.rewards.kinds import KINDS, NamedReward, Sandbox, find


class Unscorable(Exception):
    """A response could not be scored through no fault of its own; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reward runs: run directory, device and sandbox."""

    run_dir: str
    device: str = "auto"
    sandbox: Sandbox = "auto"


def make(options: NamedReward, place: Place) -> Any:
    """The scoring function for these options. Raises: ConfigError."""
    kind = KINDS[options.kind]
    try:
        module = importlib.import_module(kind.module)
        return module.make(options, place)
    except ModuleNotFoundError as error:
        if not kind.extra:
            raise
        raise ConfigError(
            f"The reward `{options.kind}` needs the extra {kind.extra}, and {error.name} cannot be imported "
            f"here. Install it: pip install 'staleflow[{kind.extra}]'."
        ) from None


def gold_answer(columns: Mapping[str, Any], column: str, after: str = "") -> str:
    """The gold answer in a row's column, after the last `after`. Raises: Unscorable if there is none."""
    value = find(columns, column)
    if value is None or isinstance(value, Mapping | list):
        found = "nothing" if value is None else f"{type(value).__name__} {value!r:.60}"
        raise Unscorable(
            f"The row has {found} in the column `{column}`; expected the gold answer as text or a number. "
            "Name its column in `answer` of this reward."
        )
    text = str(value)
    return text.rpartition(after)[2].strip() if after else text.strip()
