"""Published policy versions: one safetensors file each, immutable, checksummed.

Invariants: a file appears under its name complete or not at all; it is never changed afterwards; a reader
gets exactly the bytes that were published, or an error. Readers map the file, so what they read stays valid
after it was retired: the storage is freed when the last of them lets go.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from protocol.errors import RunError, WeightsError

PARTIAL = ".partial"  # suffix of a file that is being written


class Published(NamedTuple):
    """Where a version lies, and how to know it."""

    location: str  # absolute path
    digest: str  # xxh3_128 of the file, hexadecimal
    size_bytes: int


def location_of(directory: str | Path, policy_version: int) -> Path:
    """The path under which a version is, or was, or will be published."""
    return Path(directory).absolute() / f"v{policy_version}.safetensors"


def publish(
    directory: str | Path,
    policy_version: int,
    tensors: Mapping[str, torch.Tensor],
    *,
    is_synced: bool = False,
) -> Published:
    """Write a version and make it visible; `is_synced`: what is reported survives a power cut, at the price
    of writing it to the disk now.

    If it is there already, of a trainer that died before it could say so, that file is the version: readers
    may have it. Raises: RunError if the file system refuses.
    """
    path = location_of(directory, policy_version)
    aside = path.with_suffix(PARTIAL)
    try:
        if _is_whole(path):
            return Published(str(path), *_digest(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), aside, metadata={"policy_version": str(policy_version)})
        digest, size = _digest(aside)
        if is_synced:
            sync(aside)
        aside.replace(path)
        if is_synced:
            sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"Version {policy_version} could not be published to {path}: {error}. "
            "Expected a writable directory with room for the weights; free some, or set `run.dir` elsewhere."
        ) from error
    return Published(str(path), digest, size)


def read(location: str | Path, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of a published version, mapped rather than copied, after its checksum was verified.

    Raises: WeightsError if it was retired, is truncated, or is not what was published.
    """
    try:
        found, size = _digest(Path(location))
        tensors = {}
        if found == digest:
            with safe_open(location, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise WeightsError(
            f"{location} is not there: the version was retired, or never published on this host. "
            "Expected a version that the trainer still keeps; pull a newer one."
        ) from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{location} cannot be read: {error}. Expected a published version.") from error
    if found != digest:
        raise WeightsError(
            f"{location} has {size} bytes with checksum {found}; {digest} was published. The file is "
            "truncated or was changed. Pull again; if it happens twice, look at the disk."
        )
    return tensors


def clean(directory: str | Path) -> None:
    """Remove what a trainer that died left half written. Nobody else may be publishing there."""
    for leftover in Path(directory).glob(f"*{PARTIAL}"):
        leftover.unlink(missing_ok=True)


def retire(location: str | Path) -> None:
    """Remove a version; one that is gone already is no error. Who has mapped it may go on reading."""
    Path(location).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_whole(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt"):
            return True
    except (FileNotFoundError, SafetensorError):
        return False


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:  # cannot be mapped
            return xxhash.xxh3_128_hexdigest(b""), 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return xxhash.xxh3_128_hexdigest(content), size
