"""Moves a trainer's weights and optimizer state off a shared device and back, bit for bit.

Invariants: every tensor keeps its identity, so the references of optimizer, FSDP and publisher stay valid;
between `release` and `take` nothing computes with them. Each rank moves what it has on its device, and
`release` returns on rank 0 once all have. A GPU's bytes wait in host memory; a CPU's memory is the device
itself, so its bytes wait in a file of the run directory. A trainer that dies leaves the file behind, and its
successor starts from a checkpoint as usual.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from protocol.errors import RunError
from workers.models.storages import OnDevice, bytes_of, left_on, peak_of, storages_of
from workers.trainer.interface import ReleasingTrainer

FILE = "kept_aside_{rank}.bin"  # in the run directory


class KeptAside:
    """The memory of one rank of a trainer, on its device or kept aside."""

    def __init__(self, trainer: ReleasingTrainer, run_directory: str) -> None:
        self._trainer, self._device = trainer, trainer.ranks.device
        self._file = Path(run_directory).absolute() / FILE.format(rank=trainer.ranks.rank)
        self._sizes: list[int] = []
        self._host: list[torch.Tensor] = []  # on a GPU
        self._storages: list[torch.UntypedStorage] = []  # whose bytes are kept aside, in order
        self._peak = 0
        if trainer.ranks.rank == 0:
            self._remove_of_more_ranks()
        for optimizer in trainer.held().optimizers:
            optimizer.register_step_post_hook(lambda *_: self._note())

    def release(self) -> OnDevice:
        """Move everything off the device. Collective: returns bytes summed over ranks, on rank 0.

        Raises: RunError if the file cannot be written.
        """
        assert not self._storages, "it was released before"
        self._note()
        tensors = list(self._tensors())
        storages = storages_of(tensors)
        self._sizes = [storage.nbytes() for storage in storages]
        if self._device.type == "cuda":
            self._host = [_bytes(storage).to("cpu") for storage in storages]
        else:
            self._write(storages)
        for storage in storages:
            storage.resize_(0)
        self._storages = storages
        peak, self._peak = peak_of(self._device, self._peak), 0
        here = torch.tensor([peak, left_on(self._device, bytes_of(tensors))])
        found = self._trainer.ranks.gather(here)
        return OnDevice(*sum(found, torch.zeros_like(here)).tolist())

    def take(self) -> None:
        """Move everything back. Raises: RunError if the file is damaged or gone."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        if self._device.type == "cuda":
            for storage, kept in zip(self._storages, self._host, strict=True):
                _bytes(storage).copy_(kept)
        else:
            self._read()
        self._storages, self._host, self._sizes = [], [], []

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def _remove_of_more_ranks(self) -> None:
        """Remove what a killed trainer of more ranks has left; files of these ranks are written again."""
        own = [FILE.format(rank=rank) for rank in range(self._trainer.ranks.size)]
        for file in self._file.parent.glob(FILE.format(rank="*")):
            if file.name not in own:
                file.unlink(missing_ok=True)

    def _write(self, storages: list[torch.UntypedStorage]) -> None:
        try:
            with self._file.open("wb") as file:
                for storage in storages:
                    file.write(_in_place(storage))
        except OSError as error:
            raise RunError(
                f"The trainer cannot leave the device (placement: colocated): {self._file} takes "
                f"{sum(self._sizes)} bytes of weights and optimizer state, and {error}. Make room there, or "
                "set run.dir to a disk that has it."
            ) from error

    def _read(self) -> None:
        try:
            with self._file.open("rb") as file:
                for storage, size in zip(self._storages, self._sizes, strict=True):
                    if file.readinto(_in_place(storage)) != size:
                        raise OSError("it is shorter than what was written")
        except OSError as error:
            raise RunError(
                f"The trainer cannot take up what it kept in {self._file} (placement: colocated): {error}. "
                "Another trainer goes on from the newest checkpoint."
            ) from error
        self.close()

    def _note(self) -> None:
        held = self._trainer.held()
        gradients = (weight.grad for model in held.models for weight in model.parameters())
        self._peak = max(
            self._peak, bytes_of([*self._tensors(), *(grad for grad in gradients if grad is not None)])
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        """All tensors on the device between two steps, without those already in host memory."""
        held = self._trainer.held()
        states = (state for optimizer in held.optimizers for state in optimizer.state.values())
        tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        for model in held.models:
            tensors += [*model.parameters(), *model.buffers()]
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if local.device.type == self._device.type:
                yield local


def _in_place(storage: torch.UntypedStorage) -> ctypes.Array[ctypes.c_char]:
    """The bytes where they lie; a numpy view would keep the storage from being freed."""
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
