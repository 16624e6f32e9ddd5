"""Data sets that reasoning-gym generates while they are read: `reasoning_gym:NAME?size=1000&seed=0`.

Invariant: an item depends on the name, the options and its number alone, so that a resumed run reads the
same."""

from typing import Any

from controller.data import fingerprints
from controller.data.tables import Found, Rows
from controller.data.typed_options import options_of
from protocol.errors import ConfigError

PREFIX = "reasoning_gym:"
LOOKED_AT = 16  # rows of a fingerprint: some sets take a second for each
EXTRA = "reasoning-gym"


class Procedural(Rows):
    """Items of one set; the prompt is the item's question, and the whole item is in the column `entry`."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""
        item = self._dataset[index]
        row = {"prompt": item["question"], "answer": item["answer"], "entry": item}
        return f"reasoning_gym:{self._name}, item {index}", row

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint, from evenly spaced rows."""
        return fingerprints.of_rows(lambda place: self.row(place)[1], len(self), looked_at=LOOKED_AT)


def open_procedural(path: str) -> Procedural:
    """The set that a path names. Raises: ConfigError with the sets or options that exist."""
    name, _, query = path.removeprefix(PREFIX).partition("?")
    try:
        from reasoning_gym.factory import DATASETS, create_dataset  # an extra
    except ImportError as error:
        raise ConfigError(
            f"data.path {path!r} needs the package `reasoning-gym`. Install it: pip install -e '.[{EXTRA}]'."
        ) from error
    if name not in DATASETS:
        raise ConfigError(
            f"data.path is {path!r}, and reasoning-gym has no set {name!r}. Expected one of "
            f"{', '.join(sorted(DATASETS))}."
        )
    options = {"size": 1000, "seed": 0} | options_of(query)
    if odd := [f"{key}={options[key]}" for key in ("size", "seed") if type(options[key]) is not int]:
        raise ConfigError(
            f"data.path {path!r} has {odd[0]}; expected a whole number, as in `?size=1000&seed=0`."
        )
    try:
        return Procedural(create_dataset(name, **options), name)
    except (TypeError, ValueError, AssertionError) as error:  # what their configurations raise
        raise ConfigError(
            f"data.path {path!r}: reasoning-gym does not make {name} with {options}: {error} Expected "
            "`?size=1000&seed=0` and fields of the set's own configuration, as numbers, true, false, JSON or "
            "text."
        ) from error
