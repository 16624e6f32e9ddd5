"""Copies of policy versions out of the weights, each taken while the trainer goes on.

Invariants: a copy is whole before the next weight changes, since the trainer asks first (`hold_weights`); one
that never asks goes on when the copy is whole. Copies are taken one after the other, in the same order on
every rank, in a thread of their own.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from workers.trainer.interface import HoldingTrainer, TrainerEngine
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.ranks import torch_errors_in_words
from workers.weights.store import FileSegment, PublishedFile


class Copy(NamedTuple):
    """A version that is written and not visible yet."""

    policy_version: int
    written: FileSegment | PublishedFile | None  # on rank 0 what `Publisher.seal` takes
    write_s: float


class Copies:
    """This rank's hand in the copies of one trainer's versions."""

    def __init__(self, trainer: TrainerEngine, publisher: Publisher) -> None:
        self._trainer, self._publisher = trainer, publisher
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")
        is_on_gpu = trainer.ranks.device.type == "cuda"
        # the training thread's stream would take the copy and the next forward pass in turn
        self._stream = torch.cuda.Stream(trainer.ranks.device) if is_on_gpu else None
        self._last: Future[Copy] | None = None

    def begin(self) -> Future[Copy]:
        """Take a copy of the version that the trainer holds; on all ranks alike, from the training thread.

        It raises RunError if there is no room, or another rank is lost.
        """
        tensors, version = self._trainer.tensors_for_publish(), self._trainer.policy_version
        stepped = torch.cuda.current_stream().record_event() if self._stream is not None else None

        def take() -> Copy:
            began = time.perf_counter()
            with torch_errors_in_words(), torch.cuda.stream(self._stream):
                if self._stream is not None and stepped is not None:
                    self._stream.wait_event(stepped)
                written = self._publisher.write(version, tensors)
            return Copy(version, written, time.perf_counter() - began)

        copying = self._last = self._thread.submit(take)
        self._hold(copying.result)
        return copying

    def finish(self) -> None:
        """Return when the copy that was begun last is whole. Raises: RunError as it did."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Begin no further copy; what is being taken is finished."""
        self._thread.shutdown(wait=False)

    def _hold(self, copied: Callable[[], object]) -> None:
        if isinstance(self._trainer, HoldingTrainer):
            self._trainer.hold_weights(copied)
        else:
            copied()
