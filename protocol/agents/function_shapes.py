"""The shapes that the function of an agent may have, told apart by the names of its parameters.

Invariant: pure; a function has the first shape of SHAPES whose `told_by` it takes, or none.
"""

from collections.abc import Collection
from typing import NamedTuple


class FunctionShape(NamedTuple):
    """What a function of this shape is called with, always by name."""

    words: str  # for people
    told_by: tuple[str, ...]
    more: tuple[str, ...] = ()
    """Given to a function that takes them."""
    asks_at_door: bool = False
    """Whether it knows its policy only as a server of OpenAI's chat completions."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be given."""
        return (*self.told_by, *self.more)


EPISODE = FunctionShape("`async def episode(policy, row)`", ("policy", "row"))
WORKFLOW = FunctionShape(
    "AReaL's `async def run(self, data, **extra_kwargs)`",
    ("data",),
    ("base_url", "api_key", "http_client"),
    asks_at_door=True,
)
SESSION = FunctionShape(
    "Miles' `async def run(base_url, prompt, request_kwargs, metadata)`",
    ("base_url", "prompt"),
    ("request_kwargs", "metadata"),
    asks_at_door=True,
)
SHAPES = (EPISODE, SESSION, WORKFLOW)


def shape_of(names: Collection[str]) -> FunctionShape | None:
    """The shape of a function with parameters of these names; None if it has none."""
    return next((shape for shape in SHAPES if {*shape.told_by} <= {*names}), None)
