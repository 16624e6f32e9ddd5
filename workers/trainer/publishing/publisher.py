"""Publishes policy versions, with every rank of the trainer taking part.

Invariants: each rank writes its own shards straight into the storage that becomes the version, which is also
the private copy that the optimizer does not touch; ranks on several hosts send rank 0 one tensor at a time,
in the published precision; ranks communicate in a process group used only here, so training may go on
meanwhile; rank 0 alone decides where versions are stored, makes them visible and retires them; an existing
version is not written again, since readers may have it, except for version 0, which an older run of this name
may have left.
"""

import hashlib
import logging
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from protocol.files import exists
from protocol.segments import has_room, segment_directory, sweep, this_host
from protocol.settings import WorkerSettings
from workers.models.parts import SpreadPart
from workers.trainer.ranks import PATIENCE, Ranks
from workers.trainer.saved.shares import place_of
from workers.weights import store
from workers.weights.manifest import Layout
from workers.weights.store import VERSIONS, FileSegment, PublishedFile, VersionStore, versions_in
from workers.weights.tensors import DTYPES, layout_of, views, write_shard, write_whole

KEPT_MAPPINGS = 4  # of a rank above 0: storage is reused
log = logging.getLogger("workers")


class Publisher:
    """One rank's part in publishing versions.

    `write` and the constructor are collective: all ranks call them alike, one call after the other. `write`
    may run beside the training thread.
    """

    def __init__(
        self, settings: WorkerSettings, ranks: Ranks, tensors: Mapping[str, torch.Tensor | SpreadPart]
    ) -> None:
        """`tensors`: the published tensors, for their sizes. Raises: RunError if nothing can be written."""
        self._ranks = ranks
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE) if ranks.size > 1 else None
        self._dtype: torch.dtype = getattr(torch, settings.model.dtype)
        self._is_one_host = self._share_host()
        base = settings.weights.directory
        shared = segment_directory(settings.run_dir, host=this_host(), base=base)
        own = Path(settings.run_dir).absolute() / "weights"
        is_shared, size = False, 0
        if ranks.rank == 0:
            size = layout_of(0, tensors, dtype=self._dtype).file_bytes
            sweep(base, keep=shared)
            is_shared = base != "auto" or bool(versions_in(shared))
            if not is_shared and not versions_in(own):  # those of an earlier trainer count: it goes on there
                is_shared = has_room(VERSIONS * size)
                if not is_shared:
                    log.info("Shared memory has no room for %d versions of %d bytes.", VERSIONS, size)
        self.directory = shared if self._agree(is_shared) else own
        self._mappings: dict[int, mmap.mmap] = {}
        if ranks.rank == 0:
            self._store = VersionStore(self.directory)
            self._store.clean()
            log.info("Policy versions, of %d bytes each, are published in %s.", size, self.directory)

    def survivors(self, after: int) -> list[tuple[int, PublishedFile]]:
        """Rank 0: versions above `after` that an earlier trainer made visible, oldest first.

        Older ones are freed, because a restarted controller does not know them and would never retire them; a
        worker that pulls one gets the error that it was retired.
        """
        found = [(version, self._store.find(version)) for version in self._store.versions()]
        for version, published in found:
            if published is None or version < after:
                self._store.retire(version)
        return [(version, p) for version, p in found if p is not None and version > after]

    def write(
        self, policy_version: int, tensors: Mapping[str, torch.Tensor | SpreadPart]
    ) -> FileSegment | PublishedFile | None:
        """Copy a version to the storage where it will be visible; rank 0 returns the argument of `seal`.

        Other ranks return None. Raises: RunError if there is no room.
        """
        layout = layout_of(policy_version, tensors, dtype=self._dtype)
        found = segment = None
        if self._ranks.rank == 0:
            path = self._store.path(policy_version)
            # the controller refuses what is beyond its train version; of this run, 0 is always the same
            found = self._store.find(policy_version) if policy_version and exists(path) else None
            segment = None if found else self._store.begin(layout)
        if self._agree(found is not None):
            return found
        if segment is not None and self._ranks.size == 1:
            write_whole(self._store, segment, tensors)
        elif self._is_one_host:
            self._write_shards(segment, layout, tensors)
        else:
            self._gather(segment, layout, tensors)
        return segment

    def seal(self, written: FileSegment | PublishedFile) -> PublishedFile:
        """Make a written version visible; from any thread of rank 0. Raises: RunError."""
        if isinstance(written, PublishedFile):
            return written
        published = self._store.seal(written)
        self._store.reserve(published.size_bytes)
        return published

    def retire(self, policy_version: int) -> None:
        """Rank 0: free a version that no reader needs any more."""
        self._store.retire(policy_version)

    def close(self) -> None:
        """Release the storage; visible versions stay."""
        if self._ranks.rank == 0:
            self._store.close()

    def _write_shards(
        self, segment: FileSegment | None, layout: Layout, tensors: Mapping[str, torch.Tensor | SpreadPart]
    ) -> None:
        mapped = segment.map if segment else self._map_partial(layout.policy_version)
        targets = views(mapped, layout)
        for name, target in targets.items():
            write_shard(target, tensors[name])
        self._agree(True)  # every rank has written
        if segment is not None:
            self._store.written(segment)

    def _gather(
        self, segment: FileSegment | None, layout: Layout, tensors: Mapping[str, torch.Tensor | SpreadPart]
    ) -> None:
        targets = views(segment.map, layout) if segment else {}
        for name, entry in layout.entries.items():
            whole = self._whole(tensors[name], DTYPES[entry.dtype])
            if segment is not None:
                targets[name].copy_(whole)
                self._store.written(segment, entry.start + entry.size)

    @torch.no_grad()
    def _whole(self, tensor: torch.Tensor | SpreadPart, dtype: torch.dtype) -> torch.Tensor:
        """All rows of a tensor in host memory on rank 0; other ranks send theirs."""
        if isinstance(tensor, SpreadPart):
            return self._sent(tensor, dtype)
        if not isinstance(tensor, DTensor):
            return tensor
        _, count = place_of(tensor)
        each = -(-tensor.shape[0] // self._ranks.size)
        mine = torch.zeros(each, *tensor.shape[1:], dtype=dtype)
        mine[:count] = tensor.to_local()
        parts = [torch.empty_like(mine) for _ in range(self._ranks.size)] if self._ranks.rank == 0 else None
        dist.gather(mine, parts, dst=0, group=self._group)
        return torch.cat(parts)[: tensor.shape[0]] if parts else mine

    def _sent(self, piece: SpreadPart, dtype: torch.dtype) -> torch.Tensor:
        """The rows of an expert, sent from the rank that has them to rank 0."""
        mine = piece.local()
        rows = torch.empty(piece.shape, dtype=dtype) if mine is None else mine.to("cpu", dtype).contiguous()
        if piece.owner and self._ranks.rank == piece.owner:
            dist.send(rows, 0, group=self._group)
        elif piece.owner and self._ranks.rank == 0:
            dist.recv(rows, piece.owner, group=self._group)
        return rows

    def _map_partial(self, policy_version: int) -> mmap.mmap:
        """A mapping of rank 0's storage, reused if possible: a new mapping is much slower."""
        path = store.path_of(self.directory, policy_version).with_suffix(store.PARTIAL)
        inode = path.stat().st_ino
        if inode not in self._mappings:
            while len(self._mappings) >= KEPT_MAPPINGS:
                del self._mappings[next(iter(self._mappings))]
            self._mappings[inode] = store.open_partial(self.directory, policy_version)
        return self._mappings[inode]

    def _agree(self, word: bool) -> bool:
        """Rank 0's value, on every rank, once all ranks have called this."""
        told = torch.tensor(int(word and self._ranks.rank == 0))
        if self._ranks.size > 1:
            dist.all_reduce(told, group=self._group)
        return bool(told.item())

    def _share_host(self) -> bool:
        if self._ranks.size == 1:
            return True
        digest = hashlib.sha256(this_host().encode()).digest()
        mine = torch.tensor([int.from_bytes(digest[:7], "little")])
        everyone = [torch.empty_like(mine) for _ in range(self._ranks.size)]
        dist.all_gather(everyone, mine, group=self._group)
        return all(torch.equal(other, mine) for other in everyone)
