"""Held-out prompts: all rows of the sets in `evaluation.data`, once and in order.

Invariants: the same configuration gives the same rows; all rows are read before a run begins, so that an
unusable set does not end a run later; rows are not shuffled.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from controller.config.data import DataSettings, RowSettings
from controller.config.evaluation import HeldOutSettings
from controller.config.models import Config
from controller.data.prompts import PromptSource
from protocol.errors import ConfigError

MAX_PROMPTS = 100_000  # of all sets together, as they are held in memory


class HeldOut(NamedTuple):
    """Held-out prompts, in order."""

    rows: tuple[bytes, ...]  # JSON in UTF-8
    sources: tuple[str, ...]  # data source of each
    digest: str  # of both

    @classmethod
    def of(cls, rows: list[bytes], sources: list[str]) -> "HeldOut":
        """These rows, with their digest."""
        digest = blake2b(digest_size=8)
        for source, row in zip(sources, rows, strict=True):
            digest.update(f"{len(source)} {len(row)} {source}".encode() + row)
        return cls(tuple(rows), tuple(sources), digest.hexdigest())


def read_held_out(config: Config) -> HeldOut:
    """All held-out prompts of a configuration; none if evaluation is off.

    Raises: ConfigError that names the set and what is wrong with it.
    """
    rows: list[bytes] = []
    sources: list[str] = []
    for name, one in config.evaluation.data.items() if config.evaluation.every_steps else ():
        try:
            found = _read(config, one)
        except ConfigError as error:
            raise ConfigError(f"evaluation.data.{name}, called `data` here: {error}") from error
        rows += found
        sources += [source_of(name, one, number, json.loads(row)) for number, row in enumerate(found)]
        if len(rows) > MAX_PROMPTS:
            raise ConfigError(
                f"evaluation.data has more than {MAX_PROMPTS} prompts, up to {name!r}. Expected at most "
                "that; give evaluation.data.NAME.max_prompts."
            )
    return HeldOut.of(rows, sources)


def _read(config: Config, one: HeldOutSettings) -> list[bytes]:
    rows = {name: getattr(one, name) for name in RowSettings.model_fields}
    data = DataSettings(shuffle=False, epochs=1).model_copy(update=rows)
    run = config.run.model_copy(update={"seed": one.seed})
    source = PromptSource(config.model_copy(update={"data": data, "run": run}), is_held_out=True)
    return source.read(one.max_prompts or MAX_PROMPTS + 1)


def source_of(name: str, one: HeldOutSettings, number: int, row: Mapping[str, Any]) -> str:
    """The data source that a row of the held-out set `name` belongs to.

    Raises: ConfigError if the column `source_column` of the row has no name of a source.
    """
    if not one.source_column:
        return name
    found = row.get(one.source_column)
    if not isinstance(found, str) or not found:
        raise ConfigError(
            f"Row {number} of evaluation.data.{name} has {found!r} as its {one.source_column!r}, which "
            "source_column names; expected the name of a data source."
        )
    return found
