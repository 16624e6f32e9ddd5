"""What an episode is saved as: some fields of our own before the bytes of whoever is above.

Pure. Fields travel as JSON, which takes whatever a policy may have written; a state is opaque.
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
