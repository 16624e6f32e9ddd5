"""Counts optimizer steps that were not finite, and dumps a batch with a non-finite loss for debugging.

Invariant: arrays are plain numbers (.npz without pickle), and the JSON beside them says what each one holds.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from protocol.errors import NotFinite, RunError
from protocol.messages import Train
from workers.trainer.batch import TrainBatch
from workers.trainer.ranks import Ranks
from workers.trainer.token_batch import TokenBatch

MAX_SKIPPED_STEPS = 3  # in a row: no longer an accident of one mini-batch
ARRAYS = {
    "tokens": "prompt and response tokens of all trajectories, concatenated",
    "positions": "places of the response tokens among the tokens of their trajectory",
    "prompt_lengths": "tokens of each trajectory before its first response token",
    "response_lengths": "response tokens of each trajectory, those that the policy sampled",
    "policy_versions": "version that sampled each response token",
    "rollout_logprobs": "logprob of each response token when it was sampled, nats",
    "proximal_logprobs": "the same under the weights just before the update (rank 0's share)",
    "seen_logprobs": "the same in the pass that trained (rank 0's share)",
    "reference_logprobs": "the same under the initial model, if there is a KL coefficient",
    "advantages": "advantage of each response token",
    "importance_weights": "its importance weight (rank 0's share)",
    "token_weights": "its weight in the loss",
    "values": "the critic's value before it, if there is a critic",
    "returns": "what the critic is trained towards",
}


log = logging.getLogger("workers")


class Skipped:
    """The optimizer steps in a row, up to now, that were skipped."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._steps: list[dict[str, object]] = []
        self._last = ""

    def clear(self) -> None:
        """Forget skipped steps: a step was taken."""
        self._steps = []

    def add(self, step: dict[str, object], problem: str, *, version: int) -> None:
        """Count and log a skipped step."""
        self._last = f"version {version}, minibatch {step['minibatch']}: {problem}"
        log.warning("An optimizer step was skipped, because it was not finite: %s.", self._last)
        self._steps.append({"train_version": version, **step})

    @property
    def are_too_many(self) -> bool:
        """Whether training has to end."""
        return len(self._steps) >= MAX_SKIPPED_STEPS

    def give_up(self, train: Train, *, batch: TrainBatch, flat: TokenBatch, ranks: Ranks) -> NoReturn:
        """Write the batch to disk, on rank 0, which the others outlast. Raises: NotFinite with the folder."""
        path = self._directory / f"version_{train.train_version}"
        if ranks.rank == 0:
            write_study(path, train, batch=batch, flat=flat, seen=self._steps)
        error = NotFinite(
            f"{len(self._steps)} optimizer steps in a row were not finite, the last of {self._last}. "
            f"Expected finite numbers. The batch lies in {path} for study; lower `trainer.lr`, or look there "
            "for what the loss was given, and resume from the newest checkpoint."
        )
        ranks.outlast_rank_0(error)
        raise error


def write_study(
    path: Path, train: Train, *, batch: TrainBatch, flat: TokenBatch, seen: Sequence[Mapping[str, object]]
) -> None:
    """Make the directory `path` with `batch.npz` and `seen.json`.

    `seen`: the skipped optimizer steps. Raises: RunError if the file system refuses.
    """
    arrays = {
        "tokens": np.concatenate(batch.tokens),
        "positions": np.concatenate(batch.positions),
        "prompt_lengths": np.array(batch.prompt_lengths),
        "response_lengths": np.array(batch.response_lengths),
    }
    for name in ARRAYS.keys() - arrays.keys():
        tensor = getattr(flat, name)
        if isinstance(tensor, torch.Tensor):
            arrays[name] = tensor.numpy(force=True)
    report = {
        "train_version": train.train_version,
        "skipped_steps": [_as_json(step) for step in seen],
        "not_finite": {
            name: int((~np.isfinite(array)).sum())
            for name, array in sorted(arrays.items())
            if not np.isfinite(array).all()
        },
        "arrays": {name: ARRAYS[name] for name in sorted(arrays)},
        "trajectories": [_as_json(item._asdict()) for item in train.items],
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        np.savez(path / "batch.npz", **arrays)  # pyright: ignore[reportArgumentType]  # no allow_pickle
        (path / "seen.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(
            f"The batch could not be written to {path}: {error}. Free some space, resume."
        ) from error


def _as_json(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields, with non-finite numbers as strings, because JSON has no non-finite numbers."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
