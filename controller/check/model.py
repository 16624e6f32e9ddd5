"""What a model's architecture means for a run, from its config.json and the headers of its weights.

Invariant: pure; nothing is loaded.
"""

from collections.abc import Collection, Iterator
from typing import Literal

from controller.config.models import Config
from protocol.engines import ENGINES
from protocol.model_shape import Shape, expert_count, mixture_problem, too_long

ModelFinding = tuple[Literal["error", "note"], str, str]
"""(level, field, text)."""
BIAS = (
    "so engine and trainer mean different distributions, and importance weights are too small: their mean "
    "was 0.92 at top_p 0.9, 0.66 at top_k 5 and 0.96 at temperature 0.6 with top_p 0.95 in an untrained "
    "model of 23 tokens, 0.99, 0.98 and 1.00 in one that is sure of most tokens, where it should be 1. "
    "Expected top_p: 1 and top_k: 0; lower the temperature if you want it sharper, which is exact."
)


def model_findings(config: Config, shape: Shape, names: Collection[str]) -> Iterator[ModelFinding]:
    """What is wrong with a run of this model, or worth knowing.

    `shape` is its config.json and `names` are those of its weights, both empty if it is not made yet.
    """
    is_ours, engine = config.trainer.engine == "fsdp", ENGINES.get(config.rollout.engine)
    if (is_ours or (engine is not None and engine.has_context)) and (problem := _too_long(config, shape)):
        yield "error", "rollout.max_response_tokens", problem
    if is_ours:
        yield from _mixture_findings(config, shape, names)
    yield from _sampling_findings(config)


def _too_long(config: Config, shape: Shape) -> str | None:
    return too_long(shape, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)


def _mixture_findings(config: Config, shape: Shape, names: Collection[str]) -> Iterator[ModelFinding]:
    is_adapter = config.trainer.lora.rank > 0
    if is_adapter and (count := expert_count(shape)):
        yield (
            "note", "trainer.lora.target_modules",
            f"the {count} experts of this model get no adapter: they are no linear layers. Attention and the "
            "other layers get theirs.",
        )  # fmt: skip
    engine = ENGINES.get(config.rollout.engine)
    is_refused = not is_adapter or (engine is not None and engine.loads_single_experts)
    if is_refused and (problem := mixture_problem(shape, names)):
        yield "error", "model.path", problem


def _sampling_findings(config: Config) -> Iterator[ModelFinding]:
    sampling, is_sampled = config.rollout.sampling, not config.trainer.is_supervised
    if is_sampled and sampling.top_p < 1:
        yield (
            "note", "rollout.sampling.top_p",
            f"{sampling.top_p:g} cuts unlikely tokens off when responses are drawn, and not when they are "
            f"trained, {BIAS}",
        )  # fmt: skip
    elif is_sampled and sampling.top_k:
        yield (
            "note", "rollout.sampling.top_k",
            f"{sampling.top_k} keeps that many tokens when responses are drawn, and all when they are "
            f"trained, {BIAS}",
        )  # fmt: skip
