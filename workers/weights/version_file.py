"""A whole version on this host, open for reading its chunks."""

import mmap
from pathlib import Path

from protocol.errors import WeightsError
from workers.weights import manifest
from workers.weights.manifest import CHUNK_BYTES, Layout
from workers.weights.store import map_file


class VersionFile:
    """A mapped version; its storage is not reused as long as this lives."""

    def __init__(self, mapped: mmap.mmap, layout: Layout, digests: list[str]) -> None:
        self.layout, self._digests = layout, digests
        self._whole = memoryview(mapped)

    @classmethod
    def open(cls, path: Path) -> "VersionFile | None":
        """The version at `path`; None if there is no whole one."""
        try:
            mapped = map_file(path)
            layout, digests = manifest.read_header(mapped, manifest.digest_of(mapped), source=str(path))
        except (OSError, WeightsError):
            return None
        return cls(mapped, layout, digests) if len(mapped) == layout.file_bytes else None

    @property
    def policy_version(self) -> int:
        """The version's number, from its header."""
        return self.layout.policy_version

    @property
    def header(self) -> memoryview:
        """The bytes before the data."""
        return self._whole[: self.layout.header_bytes]

    def chunk(self, index: int) -> memoryview:
        """One chunk of the data; empty beyond its end."""
        start = self.layout.header_bytes + index * CHUNK_BYTES
        return self._whole[start : start + CHUNK_BYTES] if start < len(self._whole) else memoryview(b"")

    def sound_chunk(self, index: int) -> memoryview:
        """One chunk that still has its published checksum; empty if it was damaged here."""
        found = self.chunk(index)
        return found if found and manifest.chunk_digest(found) == self._digests[index] else memoryview(b"")
