"""Makes a small model of the same architecture, whose windows and chunks are shorter than a few tokens.

Invariants: whatever decides which tokens see each other stays: head size, kinds of layers, position
embedding, number of experts, options of attention; widths, vocabulary and depth shrink, and weights are
random. So a window of 4,096 tokens is tested by 40 tokens of a model of a few megabytes, in float32, where
leaving it out changes logits by their own size. The real model would need 8,192 tokens, and in bfloat16 a
missing window may be hidden by rounding.

Shapes: T tokens.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from protocol.errors import ConfigError
from protocol.model_shape import spans

SPAN = 6  # tokens, in place of every window and chunk
LENGTHS = (4, 40, 13)  # of sequences that are computed together: below the span, far beyond it, beyond it
POSITIONS = 256
WIDTH = 64  # of sizes that do not depend on the head size
VOCABULARY = 64
GAIN = 1.5  # of random weights
WIDE = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "intermediate_size_mlp")


def passed_spans(config: PretrainedConfig, *, longest: int, row: int = 0) -> dict[str, int]:
    """Windows and similar spans, by name, that are shorter than sequences of `longest` tokens.

    Or than rows of `row` tokens, if a model uses the place in the row as position.
    """
    found = spans(config.to_dict())
    return {
        name: tokens
        for name, tokens in found.items()
        if tokens < (max(row, longest) if "scale" in name else longest)
    }


class SmallCopy(NamedTuple):
    """A small model, sequences longer than its spans, and the logits of a plain pass for each."""

    model: PreTrainedModel
    sequences: list[torch.Tensor]  # [T] each
    logits: list[torch.Tensor]  # float32, [T, V] each


def small_copy(
    config: PretrainedConfig, passed: dict[str, int], *, device: torch.device, dtype: torch.dtype
) -> SmallCopy:
    """A small model of this kind, in which every span named in `passed` is SPAN tokens.

    It has the attention that `config` names. Raises: ConfigError if none can be made, since then such lengths
    cannot be tested.
    """
    draw = torch.Generator().manual_seed(0)
    sequences = [torch.randint(1, VOCABULARY, (length,), generator=draw).to(device) for length in LENGTHS]
    try:
        model: Any = _make(_shrink(config, passed), dtype)
        model.to(device).eval()
        with torch.no_grad():
            logits = [model(input_ids=one[None], use_cache=False).logits[0].float() for one in sequences]
        model.set_attn_implementation(config._attn_implementation)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ConfigError(
            f"The model ({config.model_type}) has {in_words(passed)}, which sequences of this run pass, and "
            "no small model of this architecture could be made to check that this is computed right "
            f"({type(error).__name__}: {error}). Expected prompt and response within that length: lower "
            "rollout.max_prompt_tokens or rollout.max_response_tokens, or choose another model."
        ) from error
    return SmallCopy(model, sequences, logits)


def in_words(passed: dict[str, int]) -> str:
    """Spans as text for a sentence."""
    return ", ".join(f"{name} {tokens}" for name, tokens in passed.items())


def _make(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # transformers' own attention, with the masks that the model makes itself
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
        for parameter in model.parameters():
            if parameter.ndim > 1:  # large, so that attention counts beside the residual stream
                torch.nn.init.normal_(parameter, std=GAIN * parameter.shape[-1] ** -0.5)
    return model


def _shrink(config: PretrainedConfig, passed: dict[str, int]) -> PretrainedConfig:
    small: Any = deepcopy(config.get_text_config(decoder=True))
    values = small.to_dict()
    layers = values.get("num_hidden_layers") or small.num_hidden_layers
    kept = _layers_of_all_kinds(values, layers)
    for name, value in values.items():
        if isinstance(value, list) and len(value) == layers:
            setattr(small, name, value[:kept])
        elif name.endswith(WIDE) and isinstance(value, int) and value > WIDTH:
            setattr(small, name, WIDTH)
    small.num_hidden_layers = kept
    heads = small.num_attention_heads
    head_size = getattr(small, "head_dim", None) or small.hidden_size // heads
    small.num_attention_heads = 2
    if getattr(small, "num_key_value_heads", None):
        small.num_key_value_heads = 1 if small.num_key_value_heads < heads else 2
    small.hidden_size = 2 * head_size
    small.vocab_size, small.pad_token_id, small.bos_token_id, small.eos_token_id = VOCABULARY, 0, 0, 0
    if (getattr(small, "max_position_embeddings", None) or 0) > POSITIONS:
        small.max_position_embeddings = POSITIONS
    for name in passed:
        *sections, key = name.split(".")
        place: Any = small.__dict__
        for section in sections:
            place = place[section]
        place[key] = SPAN
    return small


def _layers_of_all_kinds(values: dict[str, Any], layers: int) -> int:
    """The number of first layers that include each kind; at least two, if there are two."""
    columns = [value for value in values.values() if isinstance(value, list) and len(value) == layers]
    kinds = [repr(kind) for kind in zip(*columns, strict=True)]
    return min(layers, max([2, *(kinds.index(kind) + 1 for kind in kinds)]))


def difference(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Largest difference, as a share of the largest wanted number, or of 1."""
    scale = max(1.0, *(one.abs().max().item() for one in wanted))
    return max((one - other).abs().max().item() for one, other in zip(found, wanted, strict=True)) / scale
