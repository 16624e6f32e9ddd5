"""Records: messages, events and commands, as dataclasses whose fields are never assigned to.

Invariant: a record never changes once it is made. The type checker refuses an assignment, everywhere; Python
does not.
Why not `frozen=True`: such a dataclass takes three times as long to make, and a controller makes several for
each event: 4 % of its core's time with agents.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def record(kind: type[Kind]) -> type[Kind]:
    """A dataclass with slots, equal and hashed by its fields, that is frozen for the type checker."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
