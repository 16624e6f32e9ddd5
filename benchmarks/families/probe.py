"""Whether a tiny model of a family is computed as transformers computes it, in engine, trainer and adapter.

Each part loads the model and checks it as a run would, for sequences of LONGEST tokens. What is not refused
is measured: logprobs of the engine over responses of unequal length, decoded side by side, and gradients of
sequences packed into one row, both against plain passes of one sequence at a time. What a part refuses above
a length it must compute right below.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.families.configs import LONGEST, VOCABULARY, Family
from protocol.errors import ConfigError
from protocol.model_shape import length_limits
from protocol.settings import RolloutSettings
from protocol.trainer.adapters import LoraSettings
from tests.support.plain_batches import plain_batch
from workers.engines.interface import Generation
from workers.engines.torch import TorchEngine
from workers.models.lora_layers import add_adapter
from workers.models.model import load_causal_lm
from workers.trainer.batch import TrainBatch
from workers.trainer.packed_forward import forward_row, pack_row
from workers.trainer.policy import load_packed
from workers.trainer.sequence.no_leak import check_no_leak

CPU = torch.device("cpu")
BOUND = 1e-4  # nats of a logprob, and share of a gradient: above it a part is wrong
GAIN = 0.4  # of random weights: attention counts
SHORT = (5, 13)  # tokens of the other sequences
SHORTENED = (  # what a refusal says -> what the table says
    (r"layers of type ([a-z_, ]+), not", r"\1"),
    (r"peft puts no adapter", "peft has no layers for it"),
    (r"with the attention staleflow_packed", "attention of its own"),
    (r"mixes sequences packed", "packed sequences would mix"),
    (r"does not take packed sequences", "packed sequences not handed down"),
    (r"position embedding `(\w+)`", r"\1 positions"),
    (r"attends within chunks", "chunks"),
    (r"takes no position_ids", "no position_ids"),
    (r"between decoding with a cache", "decoding differs from a plain pass"),
    (r"no linear|no layers|has none", "no layers for an adapter"),
)


class Verdict(NamedTuple):
    """What is known of one part and family."""

    is_right: bool  # exact, or refused in words
    text: str  # a cell of the table
    gap: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.is_right and not self.text.startswith("refused")


class Row(NamedTuple):
    """What is known of a family."""

    engine: Verdict
    trainer: Verdict
    adapter: Verdict
    architecture: str


def probe(family: Family, folder: Path) -> Row:
    """Make a tiny model in the folder, and try everything on it."""
    config = family.config()
    torch.manual_seed(0)
    made: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and "A_log" not in name:
                parameter.normal_(std=GAIN * max(1.0, 8 / parameter.shape[-1] ** 0.5) ** 0.5)
    made.save_pretrained(folder)
    limits = [limit.tokens for limit in length_limits(config.to_dict())]
    return Row(
        engine=_judged(lambda longest: engine_gap(folder, longest), limits),
        trainer=_judged(lambda longest: gradient_gap(folder, longest), limits),
        adapter=_judged(lambda longest: gradient_gap(folder, longest, is_adapter=True), limits),
        architecture=type(made).__name__,
    )


def _judged(measure: Callable[[int], float], limits: Sequence[int]) -> Verdict:
    """What `measure` finds up to LONGEST tokens; where that is refused, up to the length that is allowed."""
    try:
        return _exact(measure(LONGEST), "")
    except ConfigError as error:
        refused = f"refused: {shortened(str(error))}"
    if not limits:
        return Verdict(True, refused)
    try:
        return _exact(measure(min(limits)), f" up to {min(limits)} tokens; beyond {refused}")
    except ConfigError:
        return Verdict(True, refused)


def _exact(gap: float, length: str) -> Verdict:
    is_right = gap <= BOUND
    return Verdict(is_right, f"{gap:.0e}{length}" if is_right else f"**WRONG** by {gap:.2g}{length}", gap)


def shortened(refusal: str) -> str:
    """A few words of a refusal; its first sentence if nobody has shortened it."""
    for pattern, words in SHORTENED:
        if found := re.search(pattern, refusal):
            return found.expand(words)
    return refusal.partition(". ")[0]


def _plain(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def engine_gap(folder: Path, longest: int) -> float:
    """Largest error of a logprob of the engine, in nats. Raises: ConfigError if it refuses the model."""
    rollout = RolloutSettings(max_running=4, max_prompt_tokens=4, max_response_tokens=longest - 4)
    engine = TorchEngine(load_causal_lm(folder, dtype="float32", device=CPU), rollout, stop_tokens=[])
    budgets = (2, min(11, longest - 3), longest - 3)
    added = [Generation((i, 0, 0), [5, 9, 30 + i], [], budget, i) for i, budget in enumerate(budgets)]
    found: dict[Any, list[Any]] = {generation.key: [] for generation in added}
    for generation in added:
        engine.add(generation)
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append(item)
    plain, worst = _plain(folder), 0.0
    for generation in added:
        tokens = torch.tensor([[*generation.prompt_tokens, *(item.token for item in found[generation.key])]])
        with torch.no_grad():
            logprobs_TV = plain(input_ids=tokens, use_cache=False).logits[0].log_softmax(-1)[2:-1]
        for logprobs_V, item in zip(logprobs_TV, found[generation.key], strict=True):
            worst = max(worst, abs(logprobs_V[item.token].item() - item.logprob))
    return worst


def gradient_gap(folder: Path, longest: int, *, is_adapter: bool = False) -> float:
    """Error of the gradient of packed sequences, as a share of it. Raises: ConfigError if it is refused."""
    packed, plain = load_packed(folder, device=CPU, forward_dtype=torch.float32), _plain(folder)
    if is_adapter:
        for model in (packed, plain):
            _with_adapter(model)
    check_no_leak(packed, CPU, longest=longest, row=sum((longest, *SHORT)))
    batch = _batch([SHORT[0], longest, SHORT[1]])
    logits = forward_row(packed, pack_row(batch, range(len(batch.tokens)), CPU))
    weights_NV = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    (logits.log_softmax(-1) * weights_NV).sum().backward()
    at = 0
    for tokens in batch.tokens:
        count = len(tokens) - 1
        alone = plain(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0, :-1]
        (alone.log_softmax(-1) * weights_NV[at : at + count]).sum().backward()
        at += count
    wanted, found = _gradients(plain), _gradients(packed)
    found |= {name: torch.zeros_like(wanted[name]) for name in wanted.keys() - found.keys()}
    size = torch.stack([gradient.norm() for gradient in wanted.values()]).norm().item()
    error = torch.stack([(found[name] - gradient).norm() for name, gradient in wanted.items()]).norm().item()
    return error / size


def _with_adapter(model: Any) -> None:
    model.requires_grad_(False)
    add_adapter(model, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(2)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:  # which begins at 0: then A has no gradient
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def _batch(lengths: Sequence[int]) -> TrainBatch:
    rng = np.random.default_rng(0)
    return plain_batch(
        tokens=[rng.integers(3, VOCABULARY, length) for length in lengths],
        positions=[np.arange(1, length) for length in lengths],
    )
