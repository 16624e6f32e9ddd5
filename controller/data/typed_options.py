"""Values of options behind the question mark of a `data.path`."""

import json
from typing import Any
from urllib.parse import parse_qsl


def options_of(query: str) -> dict[str, Any]:
    """The options by name: `a=1&b=2`, in which `%20` is a blank, and `+` is itself."""
    return {name: typed(text) for name, text in parse_qsl(query.replace("+", "%2B"), True)}


def typed(text: str) -> Any:
    """The value of an option: parsed as JSON if possible, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
