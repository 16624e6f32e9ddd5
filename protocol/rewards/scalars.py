"""What users' functions return for a number."""

import math
from decimal import Decimal
from typing import Any


def plain_number(value: Any) -> Any:  # whatever a user's function has returned
    """A scalar of numpy or torch, or a Decimal, as Python's own; else the value, for the caller to check."""
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else float(value)
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value
