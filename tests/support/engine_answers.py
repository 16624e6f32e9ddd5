"""Responses of the embedded engine, as a batch that a trainer takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.messages import Segment, Train, TrainItem
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.engines.interface import Generation, Sampled
from workers.rollout.worker import make_engine

THRESHOLD = 1.0  # trainer.logprob_gap_warning's default


def settings(directory: str, *, dtype: str, forward: str, **sampling: Any) -> WorkerSettings:
    """Of an engine or a trainer in this precision."""
    return WorkerSettings(
        run_dir=directory, seed=0, steps=1, model=ModelSettings(dtype=dtype), reward=RewardSettings(),
        rollout=RolloutSettings(
            max_prompt_tokens=40, max_response_tokens=144, max_running=128,
            sampling=SamplingSettings(**sampling),
        ),
        trainer=TrainerSettings(device="cpu", forward_dtype=forward),
    )  # fmt: skip


def answers(chosen: WorkerSettings, directory: str, added: Sequence[Generation]) -> list[list[Sampled]]:
    """What an engine with these settings samples for each."""
    engine = make_engine(chosen, directory)
    found: dict[Any, list[Sampled]] = {generation.key: [] for generation in added}
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append(item)
    return [found[generation.key] for generation in added]


def as_batch(
    added: Sequence[Generation], found: Sequence[list[Sampled]], *, is_cut: bool = False
) -> tuple[Train, tuple[bytes, ...]]:
    """The message that a trainer at version 0 gets; `is_cut`: with what the engine kept."""
    items = tuple(
        TrainItem(
            g.key[0], g.key[1], len(g.prompt_tokens), 0.0, (-1.0) ** g.key[1], "stop",
            (Segment(0, 0, len(sampled)),),
        )
        for g, sampled in zip(added, found, strict=True)
    )  # fmt: skip
    frames = (
        np.concatenate([np.asarray(g.prompt_tokens) for g in added]).astype("<i4").tobytes(),
        np.array([item.token for sampled in found for item in sampled], dtype="<i4").tobytes(),
        np.array([item.logprob for sampled in found for item in sampled], dtype="<f4").tobytes(),
    )
    if not is_cut:
        return Train(0, items), frames
    codes = np.array([item.kept.code for sampled in found for item in sampled], dtype="<i4").tobytes()
    words = tuple(b"".join(item.kept.words for item in sampled) for sampled in found)
    return Train(0, items, is_cut=True), (*frames, codes, *words)
