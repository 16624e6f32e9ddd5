"""The form of a saved episode: fields of each layer of ours, before the opaque bytes of the layer above.

Pure. Fields travel as JSON, which can hold any text that a policy writes.
"""

import json
from collections.abc import Mapping
from typing import Any

LENGTH_BYTES = 8


def pack(fields: Mapping[str, Any], state: bytes) -> bytes:
    """Both in one. Raises: TypeError, ValueError if a field is nothing that JSON has."""
    text = json.dumps(fields).encode()
    return len(text).to_bytes(LENGTH_BYTES, "big") + text + state


def unpack(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """What `pack` was given."""
    end = LENGTH_BYTES + int.from_bytes(packed[:LENGTH_BYTES], "big")
    return json.loads(packed[LENGTH_BYTES:end]), packed[end:]
