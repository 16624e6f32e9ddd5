"""Shares of a trainer's state, as each rank writes them.

Invariants: a share is some rows of a named tensor, from `start` on; together the files of one checkpoint have
every row once. The files are those of torch.distributed.checkpoint's HuggingFaceStorageReader: safetensors,
with the offsets of shares in the header, so nothing is pickled.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, Shard

from protocol.errors import RunError
from protocol.files import readable_as_its_folder

OFFSETS = "DCP_SHARDING_INFO"  # torch's name for the header's entry, and the three below
HEADER = {"DCP_VERSION": "1.0", "format": "pt"}
SAVED_OFFSETS = "saved_offsets"
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""By the names of safetensors."""
TYPES = {name: dtype for dtype, name in NAMES.items()}


class Share(NamedTuple):
    """Rows of a tensor, or all of a tensor without rows."""

    rows: torch.Tensor
    start: int = 0


def place_of(tensor: DTensor) -> tuple[int, int]:
    """The first row of a sharded tensor on this rank, and the number of its rows."""
    (placement,) = tensor.placements
    assert placement == Shard(0), "FSDP2 shards rows"
    each = -(-tensor.shape[0] // tensor.device_mesh.size())
    start = min(tensor.device_mesh.get_local_rank() * each, tensor.shape[0])
    count = tensor.to_local().shape[0]
    assert count == min(each, tensor.shape[0] - start), "torch.chunk's rule"
    return start, count


def share_of(tensor: torch.Tensor, *, is_first: bool) -> Share | None:
    """A copy of this rank's rows in host memory; None if it has none, or another rank writes them."""
    if isinstance(tensor, DTensor):
        start, count = place_of(tensor)
        with torch.no_grad():
            return Share(tensor.to_local().to("cpu", copy=True).contiguous(), start) if count else None
    return Share(tensor.detach().to("cpu", copy=True).contiguous()) if is_first else None


def write_shares(file: Path, shares: Mapping[str, Share], *, metadata: Mapping[str, str]) -> None:
    """Write one rank's file. Raises: OSError or SafetensorError if the disk refuses."""
    offsets = {
        name: {SAVED_OFFSETS: [share.start, *(0 for _ in share.rows.shape[1:])] if share.rows.ndim else []}
        for name, share in shares.items()
    }
    tensors = {name: share.rows for name, share in shares.items()}
    save_file(tensors, file, metadata={**HEADER, OFFSETS: json.dumps(offsets), **metadata})
    readable_as_its_folder(file)


class Shares(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint, read on access, whole or in part, however many ranks wrote them."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises: OSError or SafetensorError if one cannot be read."""
        self.metadata: dict[str, str] = {}
        self._found: dict[str, list[tuple[int, Any]]] = {}  # name -> first row, opened file
        for file in files:
            opened = safe_open(file, framework="pt")
            header: dict[str, str] = opened.metadata() or {}
            offsets = json.loads(header.get(OFFSETS, "{}"))
            self.metadata |= header
            for name in opened.keys():  # noqa: SIM118 - not a dict
                starts = offsets.get(name, {}).get(SAVED_OFFSETS, [])
                self._found.setdefault(name, []).append((starts[0] if starts else 0, opened))
        for found in self._found.values():
            found.sort(key=lambda share: share[0])

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._found[name]
        if len(found) == 1 and found[0][0] == 0:
            return found[0][1].get_tensor(name)
        return self.part(name, 0, self.shape(name)[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def shape(self, name: str) -> list[int]:
        """The shape of the whole tensor."""
        start, opened = self._found[name][-1]
        shape = list(opened.get_slice(name).get_shape())
        return [start + shape[0], *shape[1:]] if shape else shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor."""
        return TYPES[self._found[name][0][1].get_slice(name).get_dtype()]

    def part(self, name: str, start: int, count: int) -> torch.Tensor:
        """Some rows of a tensor. Raises: RunError if the files lack them."""
        parts, at = [], start
        for first, opened in self._found[name]:
            rows = opened.get_slice(name)
            end = first + rows.get_shape()[0]
            if first <= at < min(end, start + count):
                last = min(end, start + count)
                parts.append(rows[at - first : last - first])
                at = last
        if at < start + count:
            raise RunError(
                f"The checkpoint lacks rows {at} to {start + count} of {name}; expected the files of all "
                "ranks that wrote it. Choose an older step_<n>."
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def stream(
    file: Path,
    shapes: Mapping[str, tuple[torch.dtype, Iterable[int]]],
    tensor_of: Callable[[str], torch.Tensor],
    *,
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file with one tensor in memory at a time. Raises: OSError if the disk refuses."""
    names = sorted(shapes, key=lambda name: (-shapes[name][0].itemsize, name))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in names:
        dtype, shape = shapes[name]
        end = at + dtype.itemsize * torch.Size(shape).numel()
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = tensor_of(name).to(shapes[name][0]).contiguous()
            target.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
