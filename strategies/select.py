"""Strategies by name, or by the user's import path."""

from collections.abc import Mapping
from typing import TypeVar

from protocol.importing import load_object

Strategy = TypeVar("Strategy")


def select(name: str, table: Mapping[str, Strategy]) -> Strategy:
    """The strategy of this name in the table, or the object at an import path. Raises: ConfigError."""
    return table[name] if name in table else load_object(name)  # type: ignore[return-value]
