"""The FLOPs of a train step, and their share of the device's peak: `compute/*` of metrics.jsonl."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from protocol.model_shape import EXPERT_WEIGHT, expert_count
from protocol.settings import TrainerSettings
from protocol.trainer.compute import Arithmetic, Passes, peak_flops, train_flops


class OnDevices(Protocol):
    """The ranks of a trainer: how many there are, and the device of this one."""

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...


class StepPasses(NamedTuple):
    """The passes of a train step over each token."""

    policy: Passes
    critic: Passes | None  # None without one


def passes_of(options: TrainerSettings, *, has_own_pass: bool) -> StepPasses:
    """The passes under these options. `has_own_pass`: proximal logprobs take a pass of their own."""
    policy = Passes(only_forward=has_own_pass + (options.kl_coefficient > 0))
    return StepPasses(policy, Passes(only_forward=1) if options.baseline == "value" else None)


ONLY_POLICY = StepPasses(Passes(), None)


class ComputeMeter:
    """Measures one trainer; made from its model before that is sharded."""

    def __init__(
        self,
        model: PreTrainedModel,
        ranks: OnDevices,
        dtype: torch.dtype,
        passes: StepPasses = ONLY_POLICY,
    ) -> None:
        self._arithmetic, self._passes, self._ranks = arithmetic_of(model), passes, ranks.size
        device = ranks.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        self._peak = peak_flops(name, str(dtype).removeprefix("torch."))

    def metrics(self, lengths: Sequence[int], sampled: int, seconds: float) -> dict[str, float]:
        """Metrics of a batch with sequences of these lengths, of whose tokens `sampled` were sampled.

        A critic counts as the same model without a head. `mfu` is included if the device's peak is known;
        nothing is returned for a mixture that does not say how many experts a token passes.
        """
        if (model := self._arithmetic) is None:
            return {}
        tokens, squares = sum(lengths), sum(length * length for length in lengths)
        policy, critic = self._passes
        flops = train_flops(model, tokens=tokens, sampled=sampled, squares=squares, passes=policy)
        if critic is not None:
            flops += train_flops(model, tokens=tokens, sampled=0, squares=squares, passes=critic)
        per_second = flops / max(seconds, 1e-9) / self._ranks
        found = {
            "compute/flops_per_token": flops / max(1, tokens),
            "compute/flops_per_s_per_device": per_second,
        }
        return found | ({"compute/mfu": per_second / self._peak} if self._peak else {})


def arithmetic_of(model: PreTrainedModel) -> Arithmetic | None:
    """The sizes from which a model's FLOPs are computed; None for a mixture without `num_experts_per_tok`.

    Sliding windows and layers without attention count as full attention.
    """
    config: Any = model.config.get_text_config()
    experts = expert_count(config.to_dict())
    chosen = getattr(config, "num_experts_per_tok", None)
    if experts and not chosen:
        return None
    share = chosen / experts if chosen and experts else 1.0
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    weight = getattr(model.get_output_embeddings(), "weight", None)
    linear = trained = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or id(parameter) in tables or parameter is weight:
            continue
        is_expert = experts and (parameter.ndim == 3 or EXPERT_WEIGHT.search(f".{name}"))
        count = parameter.numel() * (share if is_expert else 1.0)
        linear += count
        trained += count if parameter.requires_grad else 0.0
    head = 0 if weight is None else weight.numel()
    trained_head = head if weight is not None and weight.requires_grad else 0
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_attention_heads * size * config.num_hidden_layers
    return Arithmetic(round(linear), round(trained), head, trained_head, width)
