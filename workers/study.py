"""A batch whose loss was not finite, written out so that a person can see why.

Invariant: arrays are plain numbers (.npz without pickle), and the JSON beside them says what each one holds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from protocol.errors import RunError
from protocol.messages import Train
from workers.batch import Batch
from workers.flat import Flat

ARRAYS = {
    "tokens": "prompt and response tokens of all trajectories, concatenated",
    "prompt_lengths": "prompt tokens of each trajectory",
    "response_lengths": "response tokens of each trajectory",
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


def write_study(
    path: Path, train: Train, *, batch: Batch, flat: Flat, seen: Sequence[Mapping[str, object]]
) -> None:
    """Make the directory `path` with `batch.npz` and `seen.json`.

    `seen` tells of the optimizer steps that were skipped. Raises: RunError if the file system refuses.
    """
    arrays = {
        "tokens": np.concatenate(batch.tokens),
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
        np.savez(path / "batch.npz", **arrays)  # type: ignore[arg-type]
        (path / "seen.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(
            f"The batch could not be written to {path}: {error}. Free some space, resume."
        ) from error


def _as_json(fields: Mapping[str, object]) -> dict[str, object]:
    """JSON has no word for a number that is not finite; a string is one that people can read."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
