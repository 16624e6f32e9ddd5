"""What a trainer needs to go on, as named tensors: weights, optimizer, random numbers.

Invariant: a tensor is whole and named after the weight that it belongs to, so any number of ranks can take
it up.
"""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from workers.models.lora_layers import adapter_tensors
from workers.trainer.ranks import Ranks
from workers.trainer.sharding import gather, like


def named_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, tied ones under their first name only.

    Of a model with an adapter that alone.
    """
    if adapter := adapter_tensors(model):
        return adapter
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        named.setdefault(id(tensor), (name, tensor))
    return dict(named.values())


def gather_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """On rank 0 the whole state, elsewhere nothing. Collective."""
    named = named_tensors(model)
    state = {f"model.{name}": tensor for name, tensor in named.items()}
    for name, tensor in named.items():
        for key, value in optimizer.state.get(tensor, {}).items():
            state[f"{key}.{name}"] = value
    states = ranks.gather(_random_state(ranks.device))
    return gather(state, ranks) | {f"rng.{rank}": state for rank, state in enumerate(states)}


def missing_weights(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of this model's weights that are not in `state`."""
    return [name for name in named_tensors(model) if f"model.{name}" not in state]


def restore_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks, state: Mapping[str, torch.Tensor]
) -> None:
    """Take up what `gather_state` gave.

    Ranks beyond those that saved keep the random state that they began with. Collective.
    """
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            tensor.copy_(like(state[f"model.{name}"], tensor))
            if f"step.{name}" in state:
                optimizer.state[tensor] = {
                    "step": state[f"step.{name}"].to(tensor.device, copy=True),
                    "exp_avg": like(state[f"exp_avg.{name}"], tensor),
                    "exp_avg_sq": like(state[f"exp_avg_sq.{name}"], tensor),
                }
    if (random := state.get(f"rng.{ranks.rank}")) is not None:
        _set_random_state(random, ranks.device)


def _random_state(device: torch.device) -> torch.Tensor:
    """That of the CPU, and behind it that of the GPU."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def _set_random_state(state: torch.Tensor, device: torch.device) -> None:
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:].clone(), device)
