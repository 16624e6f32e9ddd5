"""How a model's files hold its tensors: transformers joins some that its files have separately.

Versions and checkpoints have the names and shapes of the files, which vLLM and other loaders read.

Invariants: a tensor of the files is a whole tensor of the model, or rows of one expert in it; the way back is
transformers' own (`revert_weight_conversion`), tried on tensors of row numbers, so no weight is copied; a
mixture whose files cannot be made in this way is refused before it is trained.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from protocol.errors import ConfigError
from protocol.model_shape import expert_count
from workers.models.parts import SpreadPart, TensorPart

FileLayout = Mapping[str, TensorPart]
"""Parts by name in the files; empty if the files have the model's own tensors."""
AS_IT_IS: FileLayout = MappingProxyType({})


def file_layout(model: PreTrainedModel, names: Collection[str] = ()) -> FileLayout:
    """The layout of this model's files. `names`: the tensors in them; empty if there are no files here.

    Raises: ConfigError if the model is a mixture of experts whose files cannot be written back.
    """
    tensors = model.state_dict(keep_vars=True)
    firsts = {id(tensor): name for name, tensor in reversed(tensors.items())}  # of tied ones the first name
    own = {name: tensors[name] for name in firsts.values()}
    if names and own.keys() <= set(names):
        return AS_IT_IS
    found = _parts(model, own)
    if found is not None and (not names or found.keys() <= set(names)):
        return found if found.keys() != own.keys() else AS_IT_IS
    if names and (count := expert_count(model.config.to_dict())):
        raise ConfigError(
            f"The {type(model).__name__} is a mixture of {count} experts, which its files hold in another "
            f"way than the trainer: they lack {min((found or own).keys() - set(names), default='the rest')}. "
            "Expected files as transformers' save_pretrained writes them; save the model again with it, or "
            "train an adapter of its other layers (trainer.lora.rank)."
        )
    return AS_IT_IS


def split(tensors: Mapping[str, torch.Tensor], layout: FileLayout) -> dict[str, torch.Tensor]:
    """Whole tensors in the layout of the files, without a copy."""
    if not layout:
        return dict(tensors)
    return {name: part.of(tensors[part.own]) for name, part in layout.items() if part.own in tensors}


def pieces(tensors: Mapping[str, torch.Tensor], layout: FileLayout) -> dict[str, torch.Tensor | SpreadPart]:
    """Tensors that may be spread over ranks, in the layout of the files."""
    if not layout:
        return dict(tensors)
    return {
        name: tensors[part.own] if part.expert is None else SpreadPart(tensors[part.own], part)
        for name, part in layout.items()
        if part.own in tensors
    }


def _parts(model: PreTrainedModel, own: Mapping[str, torch.Tensor]) -> FileLayout | None:
    """Parts by name in the files; None if some are other than rows of an expert."""
    rows, total = {}, 0
    for name, tensor in own.items():
        rows[name] = _row_numbers(tensor.shape, total)
        total += rows[name].numel()
    try:
        reverted = revert_weight_conversion(model, dict(rows))
    except (ValueError, RuntimeError, KeyError, AttributeError):
        return None  # it joins or transposes tensors
    names, firsts = list(rows), [int(numbers.flatten()[0]) for numbers in rows.values()]
    found, covered = {}, 0
    for name, numbers in reverted.items():
        flat = numbers.flatten()
        first, count = int(flat[0]), flat.numel()
        if not torch.equal(flat, torch.arange(first, first + count)):
            return None
        source = names[bisect_right(firsts, first) - 1]
        if (part := _part(source, rows[source], first, count)) is None:
            return None
        found[name], covered = part, covered + count
    return found if covered == total else None


def _row_numbers(shape: torch.Size, start: int) -> torch.Tensor:
    """A number for each row, per expert if a tensor has several, in a tensor of as many dimensions."""
    counts = [count if dim < max(1, len(shape) - 1) and dim < 2 else 1 for dim, count in enumerate(shape)]
    return torch.arange(start, start + math.prod(counts)).reshape(counts)


def _part(own: str, rows: torch.Tensor, first: int, count: int) -> TensorPart | None:
    """The part with these row numbers; None if it is neither the whole tensor nor of one expert."""
    at = first - int(rows.flatten()[0])
    if count == rows.numel():
        return TensorPart(own)
    if rows.ndim < 3 or at // rows.shape[1] != (at + count - 1) // rows.shape[1]:
        return None
    return TensorPart(own, at // rows.shape[1], at % rows.shape[1], count)
