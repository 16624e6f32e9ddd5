"""What users' functions return for a number."""

from typing import Any


def plain_number(value: Any) -> Any:  # whatever a user's function has returned
    """A scalar of numpy or torch as Python's own; anything else as it is, for the caller to look at."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value
