"""Loads the strategies that a configuration names: built-in ones, or the user's, whose answers are checked.

Invariants: only here is a strategy found by its name; code that makes a core passes in strategies from here;
a path that leads from a run directory to the same place as before the run was moved is the same.
"""

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller.config.models import Config
from protocol.importing import load_object
from strategies.kinds import SECTIONS, STRATEGIES, Strategies, hold

LEAST_PARTS = 2  # of a folder that has moved: never the root of the file system


def load_strategies(config: Config) -> Strategies:
    """One strategy of each kind. Raises: ConfigError if one cannot be imported, or takes other arguments."""
    staleness = config.staleness
    return Strategies(
        route=load_strategy("routing", staleness.routing),
        admit=load_strategy("admission", staleness.admission),
        migrate=load_strategy("migration", staleness.migration),
        synchronize=load_strategy("synchronization", staleness.synchronization),
        keep=load_strategy("filter", staleness.filter),
        schedule=load_strategy("schedule", config.data.schedule),
        adapt=load_strategy("pacing", staleness.pacing),
        sample=load_strategy("sampler", staleness.sampler),
        credit=load_strategy("turn_advantages", config.agent.turn_advantages),
    )


def load_strategy(field: str, name: str) -> Any:
    """The strategy that the key `key_of(field)` names. Raises: ConfigError."""
    built_in = STRATEGIES[field]
    return built_in[name] if name in built_in else hold(field, load_object(name))


def moved_folder(then: str, now: str) -> tuple[str, str]:
    """The outermost folder around a run directory that was moved or renamed, by its old and new path."""
    old, new = Path(then).parts, Path(now).parts
    while min(len(old), len(new)) > LEAST_PARTS and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return str(Path(*old)), str(Path(*new))


def with_folder(tree: Any, old: str, new: str) -> Any:
    """The tree with `new` in place of `old` where a text begins with this folder."""
    if isinstance(tree, Mapping):
        return {key: with_folder(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_folder(value, old, new) for value in tree]
    if isinstance(tree, str) and (tree == old or tree.startswith(f"{old}/")):
        return f"{new}{tree.removeprefix(old)}"
    return tree


def with_moved_strategies(was: Config, *, places: tuple[str, str]) -> Config:
    """The old configuration with the paths that files of its strategies have now, where they have moved.

    `places`: the run directory then and now. A file that is still where it was counts.
    """
    old, new = moved_folder(*places)
    for field in STRATEGIES:
        section = getattr(was, SECTIONS.get(field, "staleness"))
        name = getattr(section, field)
        there = with_folder(name, old, new)
        if os.path.isfile(_file_in(there)) and not os.path.isfile(_file_in(name)):
            moved = section.model_copy(update={field: there})
            was = was.model_copy(update={SECTIONS.get(field, "staleness"): moved})
    return was


def _file_in(strategy: str) -> str:
    """The file that a strategy such as /home/me/mine.py:choose names."""
    return strategy.rpartition(":")[0]
