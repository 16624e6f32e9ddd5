"""Torch's view of a version: a trainer's rank writes its shards, an engine maps what was published.

Invariants: a dtype is converted once, on the way into the published storage; no tensor is gathered for that
if the ranks share a host; an engine gets only tensors whose chunks were verified.
"""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from protocol.errors import WeightsError
from workers.weights import manifest
from workers.weights.copying import FlatCopy
from workers.weights.manifest import Layout
from workers.weights.store import FileSegment, PublishedFile, VersionStore, map_file, verify

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
PLAIN: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SpreadRows(Protocol):
    """Some rows of a tensor, which one rank holds."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def is_floating_point(self) -> bool:
        """Whether the tensor is of a floating-point dtype."""
        ...

    def local(self) -> torch.Tensor | None:
        """The rows on the rank that holds them; None on every other rank."""
        ...


def layout_of(
    policy_version: int, tensors: Mapping[str, torch.Tensor | SpreadRows], *, dtype: torch.dtype | None = None
) -> Layout:
    """The layout of whole tensors; floating-point ones, except buffers, in `dtype` if it is given."""
    kinds = {
        name: t.dtype if not t.is_floating_point() or isinstance(t, torch.nn.Buffer) else dtype or t.dtype
        for name, t in tensors.items()
    }
    return manifest.lay_out(
        policy_version, {name: (NAMES[kinds[name]], tuple(t.shape)) for name, t in tensors.items()}
    )


def views(mapped: mmap.mmap, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors of a mapped version; each keeps the mapping alive."""
    begin = layout.header_bytes
    found = {}
    for name, entry in layout.entries.items():
        dtype = DTYPES[entry.dtype]
        if not entry.size:
            found[name] = torch.empty(entry.shape, dtype=dtype)
            continue
        count = entry.size // dtype.itemsize
        flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=begin + entry.start)
        found[name] = flat.view(entry.shape)
    return found


@torch.no_grad()
def write_shard(target: torch.Tensor, tensor: torch.Tensor | SpreadRows) -> None:
    """Copy this rank's part of a tensor to its place in the whole."""
    if not isinstance(tensor, torch.Tensor):
        if (rows := tensor.local()) is not None:
            target.copy_(rows)
        return
    if isinstance(tensor, DTensor):
        shape, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        for dim, (length, start) in enumerate(zip(shape, offset, strict=True)):
            if length == 0:  # more ranks than rows
                return
            target = target.narrow(dim, start, length)
        tensor = tensor.to_local()
    target.copy_(tensor)


def publish(
    store: VersionStore,
    policy_version: int,
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
) -> PublishedFile:
    """Publish whole tensors as a version. Raises: RunError if there is no room."""
    segment = store.begin(layout_of(policy_version, tensors, dtype=dtype))
    write_whole(store, segment, tensors)
    return store.seal(segment)


def write_whole(
    store: VersionStore, segment: FileSegment, tensors: Mapping[str, torch.Tensor | SpreadRows]
) -> None:
    """Fill a segment; checksums are computed right after the copy, from the cache."""
    sources = _flat(tensors, segment.layout)
    if sources is not None:
        store.fill(segment, FlatCopy(segment.map, segment.layout, sources, dtypes=DTYPES))
        return
    targets = views(segment.map, segment.layout)
    for name, entry in segment.layout.entries.items():
        write_shard(targets[name], tensors[name])
        store.written(segment, entry.start + entry.size)


@torch.no_grad()
def _flat(tensors: Mapping[str, torch.Tensor | SpreadRows], layout: Layout) -> list[torch.Tensor] | None:
    """All tensors, if each is contiguous in host memory, and whole on this rank; else None."""
    sources = []
    for name, entry in layout.entries.items():
        tensor = tensors[name]
        if type(tensor) in PLAIN:  # before isinstance, which takes as long for a tensor as the rest
            local = cast("torch.Tensor", tensor)
        elif (local := _local(tensor)) is None or local.shape != entry.shape:
            return None
        if not (local.is_cpu and local.is_contiguous()):
            return None
        sources.append(local)
    return sources if layout.data_bytes else None


def _local(tensor: torch.Tensor | SpreadRows) -> torch.Tensor | None:
    """This rank's part of a tensor."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor if isinstance(tensor, torch.Tensor) else tensor.local()


def read(location: str | Path, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of a published version, mapped rather than copied, after every checksum was verified.

    Raises: WeightsError if it was retired, is truncated, or is not what was published.
    """
    try:
        mapped = map_file(Path(location))
        layout = verify(mapped, digest, source=str(location))
    except FileNotFoundError:
        raise WeightsError(
            f"{location} is not there: the version was retired, or never published on this host. "
            "Expected a version that the trainer still keeps; pull a newer one."
        ) from None
    except OSError as error:
        raise WeightsError(f"{location} cannot be read: {error}. Expected a published version.") from error
    return views(mapped, layout)
