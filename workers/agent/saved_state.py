"""The format of a saved episode: fields of our own, followed by the caller's bytes.

Pure. Fields are JSON, which can hold any text of a policy; the caller's state is opaque.
"""

import json
from collections.abc import Mapping
from typing import Any

LENGTH_BYTES = 8


def pack(fields: Mapping[str, Any], state: bytes) -> bytes:
    """Fields and state in one. Raises: TypeError, ValueError if a field is not JSON."""
    text = json.dumps(fields).encode()
    return len(text).to_bytes(LENGTH_BYTES, "big") + text + state


def unpack(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The arguments of `pack`."""
    end = LENGTH_BYTES + int.from_bytes(packed[:LENGTH_BYTES], "big")
    return json.loads(packed[LENGTH_BYTES:end]), packed[end:]
