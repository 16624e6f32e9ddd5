"""Tasks of a taskset of verifiers as rows: `verifiers:TASKSET?take=1000&FIELD=VALUE`.

Invariant: a row holds all data of its task in the column `task`, and in `prompt` the task's prompt, if any.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from controller.data import fingerprints
from controller.data.tables import Found, Rows
from controller.data.typed_options import options_of
from protocol.agents.tasksets import find_taskset
from protocol.errors import ConfigError

PREFIX = "verifiers:"


class TasksetRows(Rows):
    """The tasks of one taskset, all held in memory."""

    def __init__(self, name: str, tasks: Sequence[dict[str, Any]]) -> None:
        self._name, self._tasks = name, tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""
        task = self._tasks[index]
        prompt = {"prompt": task["prompt"]} if task.get("prompt") else {}
        return f"verifiers:{self._name}, task {index}", {**prompt, "task": task}

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint, from evenly spaced rows."""
        return fingerprints.of_rows(lambda place: self.row(place)[1], len(self))


def open_taskset(path: str) -> TasksetRows:
    """The tasks that a path names. Raises: ConfigError."""
    name, _, query = path.removeprefix(PREFIX).partition("?")
    options = options_of(query)
    take = options.pop("take", None)
    if not (take is None or (isinstance(take, int) and take > 0)):
        raise ConfigError(
            f"data.path {path!r}: `take` is {take!r}; expected how many tasks to take, at least 1."
        )
    taskset = find_taskset(name, options).taskset
    if take is None and not taskset.bounded:
        raise ConfigError(f"data.path {path!r} has tasks without end; say how many to take: `?take=1000`.")
    try:
        tasks = [
            task.data.model_dump(mode="json", exclude_defaults=True) for task in islice(iter(taskset), take)
        ]
    except Exception as error:  # whatever the user's `load` raises
        raise ConfigError(
            f"data.path {path!r}: its `load` raised {type(error).__name__}: {error}. Expected tasks."
        ) from error
    return TasksetRows(name, tasks)
