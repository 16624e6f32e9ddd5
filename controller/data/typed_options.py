"""Options behind the question mark of a path of data."""

import json
from typing import Any


def typed(text: str) -> Any:
    """What an option says: JSON if it is, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
