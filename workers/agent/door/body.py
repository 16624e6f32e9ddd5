"""Reads the body of a request as a JSON object, or refuses it with a reason.

Invariants: pure; what was read has no text that cannot be encoded, and is nested no deeper than MAX_DEPTH.
"""

import json
from typing import Any

from workers.agent.door.refusal import DoorRefusal

MAX_DEPTH = 64


def read_object(body: bytes) -> dict[str, Any]:
    """The object in a body, without fields that are null. Raises: DoorRefusal."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # that it is no UTF-8 is one, too
        raise DoorRefusal(400, f"The body is no JSON in UTF-8: {error}.") from None
    if not isinstance(value, dict):
        raise DoorRefusal(400, f"The body is {value!r:.80}; expected a JSON object.")
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:  # else it is no deeper
        _check_depth(value)
    value = _encodable(value) if b"\\u" in body else value
    return {name: field for name, field in value.items() if field is not None}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]


def _too_deep() -> DoorRefusal:
    return DoorRefusal(400, f"The body is nested too deep; at most {MAX_DEPTH} levels are read.")


def _encodable(value: dict[str, Any]) -> dict[str, Any]:
    """The value with replacement characters for lone surrogates."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
