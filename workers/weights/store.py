"""The versions in one folder: written under a temporary name, sealed, retired, and their storage reused.

Invariants: a version appears under its name complete or not at all, and never changes while a process has it
open; a reader holds a shared lock for as long as its mapping lives, and the kernel releases it with the
process, so storage is reused only when no process can see it; a writer never waits for a reader: storage that
is still read is unlinked instead, and freed when the last reader closes it.

Storage is reused because the first touch of a page costs ten times the copy (measured: 0.06 of memcpy into a
fresh file, 0.9 to 1.07 into a used one).
"""

import contextlib
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from protocol.errors import BeingWritten, RunError, WeightsError
from protocol.files import is_file
from protocol.segments import hold
from workers.weights import manifest
from workers.weights.file_segment import (
    READ_RUN,
    THREADS,
    FileSegment,
    create,
    unlink_unless_locked,
    without_links,
)
from workers.weights.manifest import Layout

PARTIAL = ".partial"  # suffix of a version that is being written
SPARE = "spare-"  # prefix of unused storage
VERSIONS = 4  # that must fit: the newest, one being pulled, one being sealed, one being written
MAX_SPARES = 2  # one to write into while another is sealed


class PublishedFile(NamedTuple):
    """Where a version is stored, with its digest and size."""

    location: str  # absolute path
    digest: str  # of the file's header, which vouches for the rest; hexadecimal
    size_bytes: int


class VersionStore:
    """The versions in one folder. Each is written by one process; any number may read."""

    def __init__(self, directory: Path) -> None:
        """Make the folder and hold it.

        Raises: RunError if it cannot be made, ConfigError if it is another user's.
        """
        self.directory = directory
        try:
            self._hold = hold(directory)
        except OSError as error:
            raise RunError(
                f"The folder {directory} for policy versions cannot be made: {error.strerror}. Expected a "
                "folder that you may write to; set `weights.directory` to one."
            ) from error
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="checksum")
        self._sealed: dict[int, FileSegment] = {}
        self._spares: list[FileSegment] = []
        self._lock = Lock()  # of the two above: training, sealing and retiring run in separate threads
        self._numbers = count()

    def close(self) -> None:
        """Close all files, which stay on disk."""
        for segment in (*self._sealed.values(), *self._spares):
            segment.close()
        self._sealed, self._spares = {}, []
        self._pool.shutdown()
        self._hold.close()

    def path(self, policy_version: int) -> Path:
        """The path of a version, existing or not."""
        return path_of(self.directory, policy_version)

    def find(self, policy_version: int) -> PublishedFile | None:
        """A whole version in the folder, whichever process wrote it; None if it is missing or damaged."""
        path = self.path(policy_version)
        try:
            mapped = map_file(path)
            digest = manifest.digest_of(mapped)
            verify(mapped, digest, source=str(path))
        except (OSError, WeightsError):
            return None
        return PublishedFile(str(path), digest, len(mapped))

    def versions(self) -> list[int]:
        """The versions in the folder, oldest first."""
        return versions_in(self.directory)

    def clean(self) -> None:
        """Remove files that dead writers left behind."""
        for leftover in (*self.directory.glob(f"*{PARTIAL}"), *self.directory.glob(f"{SPARE}*")):
            unlink_unless_locked(leftover)

    def begin(self, layout: Layout) -> FileSegment:
        """Storage for a version that is to be written.

        Raises: RunError if there is no room; BeingWritten if another process writes this version here.
        """
        path, size = self.path(layout.policy_version).with_suffix(PARTIAL), layout.file_bytes
        with self._lock:
            fitting = next((spare for spare in self._spares if spare.size == size), None)
            others = [spare for spare in self._spares if spare.size != size]  # of another model
            self._spares = [s for s in self._spares if s is not fitting and s not in others]
        for spare in others:
            self._drop(spare)
        try:
            segment = fitting or create(path, size)
            if fitting is not None:
                _rename(fitting, path)
        except FileExistsError as error:
            if fitting is not None:
                self._keep(fitting)
            raise BeingWritten(
                f"Version {layout.policy_version} is being written to {self.directory} by another process of "
                "this host. It can be read from there once that one has ended."
            ) from error
        except OSError as error:
            raise self._no_room(layout.policy_version, size, error) from error
        segment.begin(layout)
        return segment

    def reserve(self, size: int) -> None:
        """Have spare storage of this size, its pages touched, for the next `begin`."""
        if any(spare.size == size for spare in self._spares):
            return
        with contextlib.suppress(OSError):  # `begin` reports the error if the storage is needed
            self._keep(create(self.directory / f"{SPARE}{os.getpid()}-{next(self._numbers)}", size))

    def written(self, segment: FileSegment, end: int | None = None) -> None:
        """The data of a segment is complete up to this byte, or altogether."""
        segment.written(segment.layout.data_bytes if end is None else end, self._pool)

    def fill(self, segment: FileSegment, copy: Callable[[int, int], None]) -> None:
        """Have `copy(begin, end)` write all data of a segment, a chunk at a time, in several threads.

        Returns when all is written.
        """
        segment.fill(copy, self._pool)

    def seal(self, segment: FileSegment, header: bytes | None = None) -> PublishedFile:
        """Make a version visible. Not synced to disk: a power cut ends the run that reads it anyway.

        Raises: RunError if the file system refuses.
        """
        header = segment.finish(header)
        version = segment.layout.policy_version
        path = self.path(version)
        try:
            segment.path.rename(path)
        except OSError as error:
            raise self._no_room(version, segment.size, error) from error
        segment.path = path
        fcntl.flock(segment.file, fcntl.LOCK_SH)  # says that its owner lives
        if (replaced := self._sealed.pop(version, None)) is not None:
            replaced.close()  # its name is this one's now
        self._sealed[version] = segment
        return PublishedFile(str(path), manifest.chunk_digest(header), segment.size)

    def retire(self, policy_version: int) -> None:
        """Remove a version, unless another living writer has made it; it may be gone already.

        A process that has mapped it may go on reading.
        """
        path = self.path(policy_version)
        segment = self._sealed.pop(policy_version, None)
        if segment is None:
            unlink_unless_locked(path)
            return
        spare = self.directory / f"{SPARE}{os.getpid()}-{next(self._numbers)}"
        try:
            path.rename(spare)  # from now on no process can open it
            segment.path = spare
            fcntl.flock(segment.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is still read, or the folder was removed
            self._drop(segment)
            return
        segment.release()
        self._keep(segment)

    def discard(self, segment: FileSegment) -> None:
        """Give up a version that is being written."""
        self._drop(segment)

    def _keep(self, spare: FileSegment) -> None:
        with self._lock:
            is_wanted = len(self._spares) < MAX_SPARES
            if is_wanted:
                self._spares.append(spare)
        if not is_wanted:
            self._drop(spare)

    def _drop(self, segment: FileSegment) -> None:
        segment.path.unlink(missing_ok=True)
        segment.close()

    def _no_room(self, policy_version: int, size: int, error: OSError) -> RunError:
        try:
            room = os.statvfs(self.directory)
            left = f"; {room.f_bavail * room.f_frsize:,} bytes are free"
        except OSError:
            left = ""
        return RunError(
            f"Version {policy_version} of {size:,} bytes could not be published to {self.directory}: "
            f"{error.strerror or error}{left}. Expected a writable folder with room for about four versions; "
            "free some, or set `weights.directory` to a folder with more."
        )


def _rename(spare: FileSegment, path: Path) -> None:
    """Give spare storage the name of a version that is to be written, unless somebody else writes it.

    Raises: FileExistsError.
    """
    unlink_unless_locked(path)  # of a dead writer
    if is_file(path):
        raise FileExistsError(path)
    spare.path.rename(path)
    spare.path = path


def path_of(directory: Path, policy_version: int) -> Path:
    """The path of a version in a folder, existing or not."""
    return directory / f"v{policy_version}.safetensors"


def versions_in(directory: Path) -> list[int]:
    """The versions in a folder, which may not exist, oldest first."""
    names = (path.stem.removeprefix("v") for path in directory.glob("v*.safetensors"))
    return sorted(int(name) for name in names if name.isdigit())


def open_partial(directory: Path, policy_version: int) -> mmap.mmap:
    """Map a version that another process has begun, to write a part of it."""
    path = path_of(directory, policy_version).with_suffix(PARTIAL)
    with open(path, "r+b", opener=without_links) as file:
        return mmap.mmap(file.fileno(), 0)


def map_file(path: Path) -> mmap.mmap:
    """A private mapping of a version: writes to it stay in this process.

    While it lives, the storage is not reused.

    Raises: FileNotFoundError if the version was retired; WeightsError if it is empty, or not a file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
        raise WeightsError(f"{path} is no file. Expected a published version.")
    with open(path, "rb", opener=without_links) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
                raise FileNotFoundError(path)
        except BlockingIOError:  # it was retired just now, and is being written to
            raise FileNotFoundError(path) from None
        if os.fstat(file.fileno()).st_size == 0:  # cannot be mapped
            raise WeightsError(f"{path} has 0 bytes: it is truncated. Pull again.")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # keeps a descriptor, and so the lock


def verify(mapped: mmap.mmap, digest: str, *, source: str) -> Layout:
    """The layout of a mapped version, after verifying the checksum of every chunk.

    Raises: WeightsError if it is not what was published.
    """
    layout, digests = manifest.read_header(mapped, digest, source=source)
    begin = layout.header_bytes
    with memoryview(mapped) as whole, ThreadPoolExecutor(THREADS) as pool:
        is_whole = len(whole) == layout.file_bytes
        runs = [whole[at : at + READ_RUN] for at in range(begin, len(whole), READ_RUN)]
        each = pool.map if len(runs) > 1 else map
        found = [one for run in each(manifest.chunk_digests, runs) for one in run]
        for run in runs:
            run.release()
    if not is_whole or found != digests:
        differing = sum(a != b for a, b in zip(found, digests, strict=False))
        raise WeightsError(
            f"{source} has {len(mapped):,} bytes, {differing} of {len(digests)} chunks with another checksum "
            f"than {digest} was published with, and {layout.file_bytes:,} bytes were. It is truncated or was "
            "changed. Pull again; if it happens twice, look at the disk and the memory."
        )
    return layout
