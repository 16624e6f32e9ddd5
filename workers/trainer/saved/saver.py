"""Begins checkpoints: their state is copied between two steps, and written while training continues.

Invariants: if all ranks see the run's directory, every rank copies and writes only its own share; otherwise
rank 0 gathers the whole state in its memory. Background work uses a process group of its own, so that
training's collectives keep their order.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from protocol.files import is_dir
from protocol.settings import WorkerSettings
from workers.models.file_layout import FileLayout
from workers.trainer.checkpoints import ALONE, Among, aside_of, prepare, write_checkpoint, write_share
from workers.trainer.ranks import Ranks
from workers.trainer.saved.shares import Share
from workers.trainer.state import buffer_names, gather_state, random_states, share_of_state

Learners = Mapping[str, tuple[PreTrainedModel, torch.optim.Optimizer]]
"""The trained models and their optimizers, by the prefix of their names in a checkpoint."""


class Saver:
    """One rank's part in the checkpoints of a trainer."""

    def __init__(
        self, settings: WorkerSettings, model_directory: Path, ranks: Ranks,
        adapter: dict[str, object] | None, layout: FileLayout,
    ) -> None:  # fmt: skip
        self._ranks = ranks
        self._directory = Path(settings.run_dir).absolute() / "checkpoints"
        self._write = partial(
            write_checkpoint,
            model_directory=model_directory,
            dtype=getattr(torch, settings.model.dtype),
            keep=settings.trainer.keep_checkpoints,
            adapter=adapter,
            layout=layout,
        )

    def begin(self, policy_version: int, learners: Learners) -> Callable[[], Path]:
        """Copy the state of a checkpoint to host memory; returns the call that writes it.

        Every rank makes that call, in any thread; on rank 0 it returns once all shares are on disk.
        Collective. Raises: RunError; so does the returned call.
        """
        path, ranks = self._directory / f"step_{policy_version}", self._ranks
        is_shared = self._is_shared(policy_version)
        copies = share_of_state if is_shared else gather_state
        state: dict[str, Share] = {}
        for prefix, (model, optimizer) in learners.items():
            state |= copies(model, optimizer, ranks, prefix=prefix)
        state |= random_states(ranks, is_shared=is_shared)
        among = Among(ranks.rank, ranks.size, ranks.meet) if is_shared and ranks.size > 1 else ALONE
        if ranks.rank == 0:
            return partial(
                self._write, self._directory, policy_version, state=state, among=among,
                buffers=buffer_names(learners[""][0]),
            )  # fmt: skip
        if not is_shared:
            return lambda: path

        def write() -> Path:
            write_share(self._directory, policy_version, state=state, among=among)
            return path

        return write

    def _is_shared(self, policy_version: int) -> bool:
        """Whether all ranks see the folder that rank 0 has just made."""
        if self._ranks.rank == 0:
            prepare(self._directory, policy_version)
        self._ranks.sum(torch.zeros(1))  # not before it is there
        is_there = is_dir(aside_of(self._directory, policy_version))
        return bool(self._ranks.sum(torch.tensor([float(is_there)])).item() == self._ranks.size)
