"""Tests that sequences of a packed row do not leak into each other, or has them computed apart.

Invariant: a model that passes gives each sequence of a row the logits that it has alone.
"""

import logging

import torch
from transformers import PretrainedConfig, PreTrainedModel

from protocol.errors import ConfigError
from protocol.model_shape import too_long
from workers.models.apart import is_apart
from workers.models.small_copy import difference, in_words, passed_spans, small_copy
from workers.trainer.packed_forward import PACKED_SDPA, compute_apart, forward_row, tolerance, whole_row

log = logging.getLogger("workers")


def check_no_leak(
    model: PreTrainedModel,
    device: torch.device,
    *,
    longest: int = 0,
    row: int = 0,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Check that sequences of a packed row do not leak into each other.

    Compares two sequences in one row with each of them alone. If they differ, the model carries a state from
    token to token: the sequences of a row are computed apart from now on (`workers/models/apart.py`), and
    compared again. In a forward pass of 16 bits a small copy of the model with large weights is compared as
    well: where weights are small yet, rounding hides a state that grows with them. Then, in a small copy of
    the model, compares sequences longer than its windows and chunks with plain passes over them.

    `longest`: tokens of a sequence of this run; `row`: those of a packed row; `dtype`: of the forward pass.
    Raises: ConfigError if they still differ: the model has an attention of its own, or one that packed
    attention does not reproduce beyond some length; training would be silently wrong.
    """
    if problem := too_long(model.config.to_dict(), longest):
        raise ConfigError(problem)
    gap, bound = _worst_leak(model, device, dtype)
    if not gap <= bound and not is_apart(model):
        compute_apart(model)
        packed_gap, (gap, bound) = gap, _worst_leak(model, device, dtype)
        if gap <= bound:
            log.warning(
                "%s carries state from token to token (packed logits would be off by %.3g): its sequences "
                "are not packed, but computed side by side, padded to the longest of a micro-batch.",
                type(model).__name__,
                packed_gap,
            )
    if not gap <= bound:
        raise ConfigError(
            f"{type(model).__name__} mixes sequences packed into one row: logits differ by {gap:.3g}, "
            f"expected at most {bound:.3g}, also where they stand side by side. Expected layers that look "
            "back alone; choose another model."
        )
    if passed := passed_spans(model.config, longest=longest, row=row):
        _check_beyond(model.config, passed, device=device, dtype=dtype, is_set_apart=is_apart(model))


def _leak(model: PreTrainedModel, device: torch.device) -> tuple[float, float]:
    """The difference of two sequences' logits between a row and alone, and the allowed difference."""
    ids = torch.arange(1, 13, device=device) % model.config.get_text_config().vocab_size
    sequences = [ids[:5], ids[5:]]
    try:
        with torch.no_grad():
            packed = forward_row(model, whole_row(sequences))
            alone = torch.cat([forward_row(model, whole_row([one])) for one in sequences])
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"{type(model).__name__} does not take packed sequences: {error}. Expected a model that hands "
            "its keyword arguments down to transformers' attention interface; choose another model."
        ) from error
    gap = (packed - alone).abs().max().item()
    return gap, tolerance(alone.dtype) * max(1.0, alone.abs().max().item())


def _worst_leak(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """The leak of the model; or that of a small copy with large weights, where 16 bits hide it."""
    gap, bound = _leak(model, device)
    if dtype == torch.float32 or not gap <= bound:
        return gap, bound
    try:
        small = small_copy(model.config, {}, device=device, dtype=dtype).model
    except ConfigError:  # none can be made
        return gap, bound
    small.set_attn_implementation(PACKED_SDPA)
    if is_apart(model):
        compute_apart(small)
    small_gap, small_bound = _leak(small, device)
    return (gap, bound) if small_gap <= small_bound else (small_gap, small_bound)


def _check_beyond(
    config: PretrainedConfig, passed: dict[str, int], *, device: torch.device, dtype: torch.dtype,
    is_set_apart: bool,
) -> None:  # fmt: skip
    """Raises: ConfigError if packed sequences that pass these spans give other logits than plain passes."""
    small = small_copy(config, passed, device=device, dtype=dtype)
    if is_set_apart:
        compute_apart(small.model)
    with torch.no_grad():
        packed = forward_row(small.model, whole_row(small.sequences)).float()
    gap, bound = difference([packed], [torch.cat(small.logits)]), tolerance(dtype)
    if not gap <= bound:
        raise ConfigError(
            f"The model ({config.model_type}) has {in_words(passed)}, and a small model like it, with "
            f"sequences beyond that, gives logits that differ by {gap:.3g} of their size between a packed "
            f"row and a plain pass; expected {bound:.3g} at most. Keep prompt and response within that "
            "length (rollout.max_prompt_tokens, rollout.max_response_tokens), or choose another model."
        )
