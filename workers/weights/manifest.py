"""The file of a policy version: safetensors, with a checksum of each chunk of its data in the header.

Invariants: the header's length does not depend on the checksums, so data can be written before it; data
begins on a page; the digest of a version is the checksum of its header, which holds the checksum of every
chunk. Any reader of safetensors can open the file.
"""

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import xxhash

from protocol.errors import WeightsError

CHUNK_BYTES = 1 << 20  # from here on the cost per message disappears; it still fits a core's cache
PAGE = 4096
MAX_HEADER_BYTES = 64 << 20  # of a model of 2 TB
DIGEST_CHARS = 32
ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip

Content = bytes | memoryview | mmap.mmap
"""A file of weights, or its beginning."""


class Entry(NamedTuple):
    """One tensor of a version."""

    dtype: str  # as safetensors calls it
    shape: tuple[int, ...]
    start: int  # byte in the data
    size: int  # bytes


class Entries(dict[str, Entry]):
    """The tensors of a version by name; never changed, as the versions of one model share them."""

    @cached_property
    def data_bytes(self) -> int:
        return sum(entry.size for entry in self.values())

    @cached_property
    def text(self) -> str:
        """The header's part on the tensors.

        Cached: of a few hundred tensors it took longer to make than a small version to write.
        """
        return "".join(
            f",{json.dumps(name)}:{json.dumps(_told(entry), separators=(',', ':'))}"
            for name, entry in self.items()
        )


@dataclass(frozen=True)
class Layout:
    """The place of every tensor, before checksums are known. Sizes are cached, as every chunk needs them."""

    policy_version: int
    entries: Entries

    @property
    def data_bytes(self) -> int:
        return self.entries.data_bytes

    @cached_property
    def header_bytes(self) -> int:
        """Bytes from the beginning of the file to its data."""
        return len(header(self, [""] * chunk_count(self.data_bytes)))

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.data_bytes


def lay_out(policy_version: int, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Layout:
    """The layout of tensors given as (dtype, shape); wide items first, so that each is aligned."""
    return Layout(policy_version, _place(tuple(tensors.items())))


def chunk_count(data_bytes: int) -> int:
    """The number of chunks in the data; the last one may be short."""
    return -(-data_bytes // CHUNK_BYTES)


def chunk_digest(chunk: memoryview | bytes) -> str:
    """The checksum of one chunk."""
    return xxhash.xxh3_128_hexdigest(chunk)


def chunk_digests(data: memoryview) -> list[str]:
    """The checksums of adjacent chunks; the last one may be short."""
    return [chunk_digest(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]


def header(layout: Layout, digests: list[str]) -> bytes:
    """The beginning of the file, up to its data."""
    metadata = {
        "policy_version": str(layout.policy_version),
        "chunk_bytes": str(CHUNK_BYTES),
        "xxh3_128": "".join(digest.ljust(DIGEST_CHARS) for digest in digests),
    }
    about = json.dumps({"__metadata__": metadata}, separators=(",", ":")).removesuffix("}")
    text = f"{about}{layout.entries.text}}}".encode()
    padded = -(-(8 + len(text)) // PAGE) * PAGE - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)


def read_header(content: Content, digest: str, *, source: str) -> tuple[Layout, list[str]]:
    """Layout and chunk digests from the beginning of a file, or from all of it.

    Raises: WeightsError if it is not what was published under this digest.
    """
    length = 8 + int.from_bytes(content[:8], "little")
    size = len(content)
    if not 8 < length <= min(size, MAX_HEADER_BYTES + 8):
        raise WeightsError(
            f"{source} has {size} bytes and names a header of {length}; {digest} was published. It is "
            "truncated or was changed. Pull again; if it happens twice, look at the disk."
        )
    begin = bytes(content[:length])
    found = chunk_digest(begin)
    if found != digest:
        raise WeightsError(
            f"{source} has {size} bytes with checksum {found}; {digest} was published. It is truncated or "
            "was changed. Pull again; if it happens twice, look at the disk."
        )
    return _parse(begin)


def digest_of(content: Content) -> str:
    """The digest of a version, from its file. Raises: WeightsError if the file is cut off."""
    length = 8 + int.from_bytes(content[:8], "little")
    if not 8 < length <= min(len(content), MAX_HEADER_BYTES + 8):
        raise WeightsError(f"A file of {len(content)} bytes names a header of {length}: it is truncated.")
    return chunk_digest(content[:length])


@lru_cache(maxsize=2)  # for the model that a process publishes, and another one in a test
def _place(tensors: tuple[tuple[str, tuple[str, tuple[int, ...]]], ...]) -> Entries:
    entries, start = Entries(), 0
    for name, (dtype, shape) in sorted(tensors, key=lambda item: -ITEM_BYTES[item[1][0]]):
        entries[name] = _entry(dtype, shape, start)
        start += entries[name].size
    return entries


def _entry(dtype: str, shape: tuple[int, ...], start: int) -> Entry:
    return Entry(dtype, shape, start, ITEM_BYTES[dtype] * prod(shape))


def _told(entry: Entry) -> dict[str, object]:
    offsets = (entry.start, entry.start + entry.size)
    return {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets}


def _parse(begin: bytes) -> tuple[Layout, list[str]]:
    content = json.loads(begin[8:])
    metadata = content.pop("__metadata__")
    entries = Entries(
        {
            name: _entry(value["dtype"], tuple(value["shape"]), value["data_offsets"][0])
            for name, value in content.items()
        }
    )
    text = metadata["xxh3_128"]
    digests = [text[at : at + DIGEST_CHARS] for at in range(0, len(text), DIGEST_CHARS)]
    return Layout(int(metadata["policy_version"]), entries), digests
