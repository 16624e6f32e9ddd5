"""Values of options behind the question mark of a `data.path`."""

import json
from typing import Any


def typed(text: str) -> Any:
    """The value of an option: parsed as JSON if possible, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
