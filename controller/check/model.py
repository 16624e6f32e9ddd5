"""Checks a run against the model's architecture, from its config.json.

Invariant: pure; no file is read.
"""

from collections.abc import Iterator
from typing import Literal

from controller.config.models import Config
from protocol.engines import ENGINES
from protocol.model_shape import Shape, expert_count, text_shape, too_long
from protocol.settings import SamplingSettings

ModelFinding = tuple[Literal["error", "note"], str, str]
"""(level, field, text)."""
OWN = "; an engine that does not tell what it kept is refused."
CUTS = ("top_p", "top_k", "min_p", "min_tokens")


def model_findings(config: Config, shape: Shape) -> Iterator[ModelFinding]:
    """Errors and notes of a run with this model.

    `shape` is its config.json, empty before the model is made.
    """
    is_ours, engine = config.trainer.engine == "fsdp", ENGINES.get(config.rollout.engine)
    if (is_ours or (engine is not None and engine.has_context)) and (problem := _too_long(config, shape)):
        yield "error", "rollout.max_response_tokens", problem
    if is_ours:
        yield from _adapter_findings(config, shape)
        yield from _shared_row_findings(config, shape)
    yield from _temperature_findings(config)
    yield from _sampling_findings(config, shape)


def _too_long(config: Config, shape: Shape) -> str | None:
    return too_long(shape, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)


def _adapter_findings(config: Config, shape: Shape) -> Iterator[ModelFinding]:
    rank, count, engine = config.trainer.lora.rank, expert_count(shape), ENGINES.get(config.rollout.engine)
    if not rank or not count:
        return
    yield (
        "note", "trainer.lora.target_modules",
        f"the {count} experts of this model get no adapter: they are no linear layers. Attention and the "
        "other layers get theirs.",
    )  # fmt: skip
    if engine is not None and not engine.adapts_mixtures:
        yield (
            "error", "trainer.lora.rank",
            f"is {rank}, and the model is a mixture of {count} experts, of which {config.rollout.engine} "
            "takes no adapter here: its kernels for that need Triton, and were never seen to run. Train all "
            "weights (trainer.lora.rank: 0), or set rollout.engine: torch.",
        )  # fmt: skip


def _shared_row_findings(config: Config, shape: Shape) -> Iterator[ModelFinding]:
    """As the trainer does when it starts, in `workers/trainer/sequence/group.py`."""
    size, text = config.trainer.sequence_ranks, text_shape(shape)
    heads = {name: text.get(name) for name in ("num_attention_heads", "num_key_value_heads")}
    uneven = [f"{name} {count}" for name, count in heads.items() if isinstance(count, int) and count % size]
    if uneven:
        yield (
            "error", "trainer.sequence_ranks",
            f"is {size}, which does not divide {' and '.join(uneven)} of the model. Expected a divisor of "
            "both: each rank computes the attention of some heads.",
        )  # fmt: skip


def _temperature_findings(config: Config) -> Iterator[ModelFinding]:
    samplings = {"rollout.sampling": config.rollout.sampling}
    if config.evaluation.every_steps:
        samplings["evaluation.sampling"] = config.evaluation.sampling
    if (engine := ENGINES.get(config.rollout.engine)) is None:
        return
    for section, sampling in samplings.items():
        if problem := engine.temperature_problem(sampling.temperature):
            yield "error", f"{section}.temperature", problem


def _sampling_findings(config: Config, shape: Shape) -> Iterator[ModelFinding]:
    sampling = config.rollout.sampling
    if not config.is_cut:
        return
    names = [name for name in CUTS if getattr(sampling, name) != getattr(SamplingSettings(), name)]
    vocabulary = shape.get("vocab_size")
    most = f"{vocabulary // 8} bytes" if vocabulary else "an eighth of a byte per id of the vocabulary"
    bound = f"its kept ids at 4 bytes each, {most} at most"
    if sampling.top_k:
        bound = f"at most {4 * sampling.top_k} bytes"
    yield (
        "note", f"rollout.sampling.{names[0]}",
        f"{_listed(names)} cut tokens off, and each is trained over just what was kept when it was drawn: "
        "with equal weights on both sides importance weights have mean 1, as without a cut. A token costs "
        f"{bound} more on its way and in run.db"
        + (OWN if config.rollout.engine not in ENGINES else "."),
    )  # fmt: skip


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
