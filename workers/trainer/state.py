"""The state from which a trainer continues, as named tensors: weights, optimizer, random numbers.

Invariants: a tensor is named after its weight, and its rows are known by their place, so any number of ranks
can read it; a buffer is published and saved unrounded, because it is not trained and the forward pass does
not round it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from protocol.errors import RunError
from workers.models.file_layout import FileLayout, pieces
from workers.models.lora_layers import adapter_tensors
from workers.models.parts import SpreadPart
from workers.trainer.ranks import Ranks
from workers.trainer.saved.shares import Share, Shares, place_of, share_of
from workers.trainer.sharding import gather

Published = dict[str, torch.Tensor | SpreadPart]
"""The tensors of a version by name in the model's files, as one rank holds them."""


def named_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, tied ones under their first name only.

    Of a model with an adapter only the adapter's tensors.
    """
    if adapter := adapter_tensors(model):
        return adapter
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        named.setdefault(id(tensor), (name, tensor))
    return dict(named.values())


def published_tensors(model: PreTrainedModel, layout: FileLayout) -> Published:
    """The tensors of a version; the next step changes them."""
    tensors = {
        name: tensor.detach() if isinstance(tensor, torch.nn.Parameter) else torch.nn.Buffer(tensor)
        for name, tensor in named_tensors(model).items()
    }
    return pieces(tensors, layout)


def buffer_names(model: PreTrainedModel) -> set[str]:
    """The names in `named_tensors` that are not trained."""
    named = named_tensors(model).items()
    return {name for name, tensor in named if not isinstance(tensor, torch.nn.Parameter)}


def _state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, *, prefix: str
) -> dict[str, torch.Tensor]:
    """Weights and their optimizer state, as this rank holds them."""
    named = named_tensors(model)
    state = {f"{prefix}model.{name}": tensor for name, tensor in named.items()}
    for name, tensor in named.items():
        for key, value in optimizer.state.get(tensor, {}).items():
            state[f"{prefix}{key}.{name}"] = value
    return state


def share_of_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks, *, prefix: str = ""
) -> dict[str, Share]:
    """Copies of this rank's shards in host memory; of unsharded tensors on rank 0 only."""
    state = _state(model, optimizer, prefix=prefix)
    found = {name: share_of(tensor, is_first=ranks.rank == 0) for name, tensor in state.items()}
    return {name: share for name, share in found.items() if share is not None}


def gather_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks, *, prefix: str = ""
) -> dict[str, Share]:
    """On rank 0 the whole state, for ranks that share no disk; on other ranks nothing. Collective."""
    gathered = gather(_state(model, optimizer, prefix=prefix), ranks)
    return {name: Share(tensor) for name, tensor in gathered.items()}


def random_states(ranks: Ranks, *, is_shared: bool) -> dict[str, Share]:
    """This rank's random state; if ranks share no disk, those of all ranks, on rank 0. Collective."""
    mine = _random_state(ranks.device)
    if is_shared:
        return {f"rng.{ranks.rank}": Share(mine)}
    return {f"rng.{rank}": Share(state) for rank, state in enumerate(ranks.gather(mine))}


def missing_weights(model: PreTrainedModel, state: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Names of this model's weights that are not in `state`."""
    return [name for name in named_tensors(model) if f"{prefix}model.{name}" not in state]


def restore_state(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks, state: Shares, *, prefix: str = ""
) -> None:
    """Restore the state that ranks wrote, however many they were; each rank reads its own rows.

    Ranks beyond those that saved keep their initial random state. Raises: RunError if a tensor has another
    shape.
    """
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            _fill(tensor, state, f"{prefix}model.{name}")
            if f"{prefix}step.{name}" in state:
                moments = {key: torch.zeros_like(tensor) for key in ("exp_avg", "exp_avg_sq")}
                for key, moment in moments.items():
                    _fill(moment, state, f"{prefix}{key}.{name}")
                step = state[f"{prefix}step.{name}"].to(tensor.device, copy=True)
                optimizer.state[tensor] = {"step": step, **moments}
    if not prefix and f"rng.{ranks.rank}" in state:
        _set_random_state(state[f"rng.{ranks.rank}"], ranks.device)


def _fill(tensor: torch.Tensor, state: Shares, name: str) -> None:
    """Copy this rank's rows from the state into a tensor. Raises: RunError if the shapes differ."""
    if (there := state.shape(name)) != [*tensor.shape]:
        raise RunError(
            f"{name} is of shape {there} in the checkpoint, and {[*tensor.shape]} in this model. Expected a "
            "checkpoint of this very model; resume with the configuration that wrote it."
        )
    if not isinstance(tensor, DTensor):
        tensor.copy_(state[name])
        return
    start, count = place_of(tensor)
    if count:
        tensor.to_local().copy_(state.part(name, start, count))


def _random_state(device: torch.device) -> torch.Tensor:
    """The random state of the CPU, followed by that of the GPU."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def _set_random_state(state: torch.Tensor, device: torch.device) -> None:
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:].clone(), device)
