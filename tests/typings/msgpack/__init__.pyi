"""What is used here of msgpack, which has no types of its own."""

from typing import Any

class ExtType:
    def __init__(self, code: int, data: bytes) -> None: ...

class UnpackException(Exception): ...

class Packer:
    def __init__(self, *, use_bin_type: bool = True, autoreset: bool = True) -> None: ...
    def pack(self, obj: object) -> bytes: ...

def packb(obj: object, *, use_bin_type: bool = True) -> bytes: ...
def unpackb(
    packed: bytes | memoryview,
    *,
    use_list: bool = True,
    raw: bool = False,
    strict_map_key: bool = True,
    max_array_len: int = -1,
    max_map_len: int = -1,
    max_ext_len: int = -1,
    max_str_len: int = -1,
    max_bin_len: int = -1,
) -> Any: ...
