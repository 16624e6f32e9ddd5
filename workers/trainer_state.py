"""What a trainer needs to go on, as named tensors: weights, optimizer, random numbers.

Invariant: a tensor is whole and named after the weight that it belongs to, so any number of ranks can take
it up.
"""

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from workers.ranks import Ranks
from workers.sharding import gather, like


def named_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, tied ones under their first name only."""
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
    gathered = gather(state, ranks)
    if ranks.rank == 0:
        gathered["rng"] = torch.get_rng_state()
    return gathered


def missing_weights(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of this model's weights that are not in `state`."""
    return [name for name in named_tensors(model) if f"model.{name}" not in state]


def restore_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, state: Mapping[str, torch.Tensor]
) -> None:
    """Take up what `gather_state` gave. Collective."""
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            tensor.copy_(like(state[f"model.{name}"], tensor))
            if f"step.{name}" in state:
                optimizer.state[tensor] = {
                    "step": state[f"step.{name}"].to(tensor.device, copy=True),
                    "exp_avg": like(state[f"exp_avg.{name}"], tensor),
                    "exp_avg_sq": like(state[f"exp_avg_sq.{name}"], tensor),
                }
    torch.set_rng_state(state["rng"])
