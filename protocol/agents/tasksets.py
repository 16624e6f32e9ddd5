"""Tasksets of verifiers: found by id or import path, configured by flat options; their tasks out of rows.

Invariant: a task that went through a row is the task that the taskset made: all of its data is in the row.
"""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from protocol.errors import ConfigError
from protocol.importing import load_object

EXTRA = "verifiers"
Foreign: TypeAlias = Any  # of verifiers, or a value for it: the package is not there where types are checked


class FoundTaskset(NamedTuple):
    """A taskset of the user's, and what it is made of."""

    taskset: Foreign
    task_class: Foreign
    config: Foreign

    def task(self, data: object) -> Foreign:
        """The task whose data stand in a row. Raises: ConfigError."""
        try:
            wire = self.task_class.data_type().model_validate(data)
        except ValueError as error:
            raise ConfigError(
                f"The column `task` of a row is {str(data)[:120]!r}; expected the data of a "
                f"{self.task_class.__name__}, as `data.path: verifiers:TASKSET` gives them. {error}"
            ) from error
        return self.task_class(wire, self.config.task)


def find_taskset(target: Foreign, options: Mapping[str, Foreign]) -> FoundTaskset:
    """The taskset of a class, of the import path of one, or of an id of an installed package.

    `options`: fields of its configuration; a dot leads into a section, as in `task.judge_model`.
    Raises: ConfigError.
    """
    _check_installed(target)
    found, name = _class_of(target), target if isinstance(target, str) else target.__name__
    from verifiers.v1 import Taskset, TasksetConfig
    from verifiers.v1.utils.generic import concrete_type

    config_type: Foreign = concrete_type(found, TasksetConfig, origin=Taskset) or TasksetConfig
    try:
        config = config_type.model_validate({"id": name, **nested(options)})
        return FoundTaskset(found(config), found.task_type(), config)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The taskset {name!r} cannot be made with {dict(options)}: {error} Expected fields of "
            f"{config_type.__name__}; a dot leads into a section, as in `task.judge_model`."
        ) from error


def _check_installed(target: Foreign) -> None:
    """Raises: ConfigError."""
    try:
        importlib.import_module("verifiers.v1")
    except ImportError as error:
        raise ConfigError(
            f"The taskset {target!r} needs the package `verifiers` 0.4, which cannot be imported: {error}. "
            f"Install it: pip install -e '.[{EXTRA}]'."
        ) from error


def _class_of(target: Foreign) -> Foreign:
    """Raises: ConfigError."""
    from verifiers.v1 import Env, SingleAgentEnv, Taskset
    from verifiers.v1.utils.loaders import environment_class, taskset_class

    found = load_object(target) if isinstance(target, str) and ":" in target else target
    if isinstance(found, type) and issubclass(found, Env):
        raise _has_own_play(target, found)
    if isinstance(found, str):
        try:
            taskset: Foreign = taskset_class(found)
            env: Foreign = environment_class(found)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"There is no taskset {found!r}: {error} Expected the id of an installed package that "
                "exports one, such as `gsm8k`, or an import path, such as `tasks.py:Sums`."
            ) from error
        if not issubclass(env, SingleAgentEnv):
            raise _has_own_play(target, env)
        return taskset
    if not isinstance(found, type) or not issubclass(found, Taskset):
        raise ConfigError(f"{target!r} is {found!r:.80}; expected a subclass of `verifiers.v1.Taskset`.")
    return found


def _has_own_play(target: Foreign, env: Foreign) -> ConfigError:
    return ConfigError(
        f"{target!r} is played by the environment {env.__name__} of verifiers, which has several agents, or "
        "a way of its own to play; here one policy plays one task. Expected a taskset that one agent plays."
    )


def nested(options: Mapping[str, Foreign]) -> dict[str, Foreign]:
    """Options with dots in their names as sections. Raises: ConfigError if one is both."""
    whole: dict[str, Foreign] = {}
    for name, value in options.items():
        *sections, last = name.split(".")
        place = whole
        for section in sections:
            inner: Foreign = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"The option {name!r} leads into {section!r}, which has a value itself.")
            place = cast("dict[str, Foreign]", inner)
        place[last] = value
    return whole
