"""A file that holds one version, or spare storage for one: made, written, checksummed, removed.

Invariants: while a process writes to a file it holds an exclusive lock on it, which the kernel releases with
the process; no file is opened through a link; a file has all its blocks before it is mapped.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workers.weights import manifest
from workers.weights.manifest import CHUNK_BYTES, Layout

THREADS = min(4, os.cpu_count() or 1)  # for checksums: 28 GB/s each, so few are enough
# A thread's task: handing over one chunk at a time took as long as its checksum.
WRITTEN_RUN = 4 * CHUNK_BYTES  # checksummed after a copy, while it is in the cache
READ_RUN = 32 * CHUNK_BYTES


class FileSegment:
    """One writable, mapped file, which no other process reads before it is sealed."""

    def __init__(self, path: Path, file: int, size: int) -> None:
        self.path = path
        self.file = file  # descriptor, with an exclusive lock while it is written
        self.size = size
        self.map = mmap.mmap(file, size)
        self.layout: Layout
        self._done = 0  # bytes of data whose checksums are begun
        self._digests: list[Future[list[str]]] = []  # of runs of chunks

    def begin(self, layout: Layout) -> None:
        """Start to write a version of this layout."""
        self.layout, self._done, self._digests = layout, 0, []
        self._data = memoryview(self.map)[layout.header_bytes :]

    def written(self, end: int, pool: ThreadPoolExecutor) -> None:
        """Checksum runs of chunks up to this byte, from the cache; the data is complete up to there."""
        is_end = end == self.layout.data_bytes
        while self._done + WRITTEN_RUN <= end or (is_end and self._done < end):
            run = self._data[self._done : min(end, self._done + WRITTEN_RUN)]
            if self.layout.data_bytes <= READ_RUN:  # done before another thread would have woken up
                made = Future[list[str]]()
                made.set_result(manifest.chunk_digests(run))
            else:
                made = pool.submit(manifest.chunk_digests, run)
            self._digests.append(made)
            self._done += len(run)

    def fill(self, copy: Callable[[int, int], None], pool: ThreadPoolExecutor) -> None:
        """Write the data by `copy(begin, end)`, each chunk in the thread that computes its checksum.

        Each thread, this one included, takes the next free chunk: handing chunks to threads would cost
        wake-ups.
        """
        size = self.layout.data_bytes
        found = [""] * manifest.chunk_count(size)
        places = iter(range(len(found)))

        def work() -> None:
            for place in places:
                begin, end = place * CHUNK_BYTES, min(size, (place + 1) * CHUNK_BYTES)
                copy(begin, end)
                found[place] = manifest.chunk_digest(self._data[begin:end])

        helpers = [pool.submit(work) for _ in range(THREADS - 1)] if size > READ_RUN else []
        try:
            work()
        finally:
            for helper in helpers:
                if not helper.cancel():  # one that has not begun yet finds nothing left
                    helper.result()
        made = Future[list[str]]()
        made.set_result(found)
        self._digests.append(made)

    def take(self, index: int, data: memoryview) -> str | None:
        """Write a received chunk; returns the checksum of the written bytes, None if its length is wrong.

        The checksum is cheapest after the copy, while the chunk is in the cache.
        """
        target = self.chunk(index)
        if len(data) != len(target):
            return None
        target[:] = data
        return manifest.chunk_digest(target)

    def chunk(self, index: int) -> memoryview:
        """The memory of one chunk."""
        start = index * CHUNK_BYTES
        return self._data[start : min(self.layout.data_bytes, start + CHUNK_BYTES)]

    def finish(self, header: bytes | None = None) -> bytes:
        """Write the header (made of the checksums, if none is given), and return it."""
        if header is None:
            header = manifest.header(self.layout, [one for run in self._digests for one in run.result()])
        self.map[: len(header)] = header
        return header

    def release(self) -> None:
        """Drop the views, so that the mapping can go when the segment does."""
        self._digests = []
        self._data = memoryview(b"")

    def close(self) -> None:
        """Close the file; the mapping goes with its last view."""
        self.release()
        os.close(self.file)
        with contextlib.suppress(BufferError):  # a frame that is still being sent
            self.map.close()


def unlink_unless_locked(path: Path) -> None:
    if path.is_symlink():  # not made by a writer of versions
        path.unlink(missing_ok=True)
        return
    with (
        contextlib.suppress(BlockingIOError, FileNotFoundError),
        open(path, "rb", opener=without_links) as file,
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


def without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def create(path: Path, size: int) -> FileSegment:
    """A new file; a dead writer's file of this name is removed first."""
    unlink_unless_locked(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _take_room(file, size)
        return FileSegment(path, file, size)
    except OSError:
        os.close(file)
        path.unlink(missing_ok=True)
        raise


def _take_room(file: int, size: int) -> None:
    """Give a new file its blocks: a mapping beyond a full file system would be SIGBUS. Raises: OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = bytes(min(size, CHUNK_BYTES))  # macOS lacks that call
    while size > 0:
        size -= os.write(file, zeros[:size])
