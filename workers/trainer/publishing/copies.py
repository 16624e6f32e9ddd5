"""Copies policy versions out of the weights while training continues.

Invariants: a copy is whole before the next weight changes, because the trainer waits for it (`hold_weights`);
a trainer without `hold_weights` continues when the copy is whole. Copies are taken one after the other, in
the same order on every rank, in a separate thread.
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
    """A version that is written and not yet visible."""

    policy_version: int
    written: FileSegment | PublishedFile | None  # on rank 0 what `Publisher.seal` takes
    write_s: float


class Copies:
    """This rank's part in copying the versions of one trainer."""

    def __init__(self, trainer: TrainerEngine, publisher: Publisher) -> None:
        self._trainer, self._publisher = trainer, publisher
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")
        is_on_gpu = trainer.ranks.device.type == "cuda"
        # on the training thread's stream, copy and forward pass would alternate
        self._stream = torch.cuda.Stream(trainer.ranks.device) if is_on_gpu else None
        self._last: Future[Copy] | None = None

    def begin(self) -> Future[Copy]:
        """Begin to copy the trainer's current version; all ranks call this from the training thread.

        The returned future raises RunError if there is no room, or another rank is lost.
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
        """Wait until the last begun copy is whole. Raises: RunError if the copy failed."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Accept no further copies; a copy in progress is finished."""
        self._thread.shutdown(wait=False)

    def _hold(self, copied: Callable[[], object]) -> None:
        if isinstance(self._trainer, HoldingTrainer):
            self._trainer.hold_weights(copied)
        else:
            copied()
