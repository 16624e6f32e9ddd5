"""What a model's config.json says of the lengths at which it computes differently, its experts and its KV.

Invariant: pure; reads the dictionary of a configuration, of any release of transformers, and nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

Shape = Mapping[str, Any]  # a config.json, of whatever family
SPAN = re.compile(
    r"window(?!.*(layers|pattern))|chunk_size|block_size|index_topk|floor_scale|original_max_pos"
)
"""In names of numbers of tokens beyond which some layer computes something else."""
LENGTH_DEPENDENT_ROPE = ("longrope", "su", "dynamic")  # factors depend on the longest sequence of a pass
WITHOUT_KV = ("linear_attention", "conv", "mamba")  # types of layers
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERT_WEIGHT = re.compile(r"\.experts\.\d+\.")  # in a weight's name: one tensor for each expert
COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "full_attention_interval", "vocab_size", "max_position_embeddings", *EXPERTS,
)  # fmt: skip
"""Whole numbers, where a model has them."""
SHOWN_CHARS = 50  # of a value that is refused


class Limit(NamedTuple):
    """A length up to which a model can be run here."""

    tokens: int
    reason: str  # how it goes on after "The model"


def checked(read: object) -> Shape:
    """Check the content of a config.json. Raises: ValueError if it is none, or a count is no number."""
    if not isinstance(read, Mapping):
        raise ValueError(f"config.json is a {type(read).__name__}; expected an object of keys and values")
    shape = cast("Shape", read)
    for section in (shape, text_shape(shape)):
        for name in COUNTS:
            value: object = section.get(name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if value is not None and not is_count:
                shown = repr(value)[:SHOWN_CHARS]
                raise ValueError(f"`{name}` in config.json is {shown}; expected a whole number, 0 or more")
    names: object = shape.get("architectures")
    listed = cast("list[object]", names) if isinstance(names, list) else [None]
    if names is not None and not all(isinstance(name, str) for name in listed):
        shown = repr(cast("object", names))[:SHOWN_CHARS]
        raise ValueError(f"`architectures` in config.json is {shown}; expected a list of names")
    return shape


def text_shape(shape: Shape) -> Shape:
    """The part about the language model; of most models all of it."""
    inner = shape.get("text_config")
    return cast("Shape", inner) if isinstance(inner, Mapping) else shape


def spans(shape: Shape) -> dict[str, int]:
    """Windows, chunks and the like by name, in tokens; those of nested sections as `section.name`."""
    found: dict[str, int] = {}
    for name, value in text_shape(shape).items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": tokens for inner, tokens in spans(cast("Shape", value)).items()}
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0 and SPAN.search(name):
            found[name] = value
    return found


def length_limits(shape: Shape) -> Iterator[Limit]:
    """Lengths beyond which packed training or the embedded engine would be wrong, of the kinds known."""
    text = text_shape(shape)
    for rope in _ropes(text):
        kind = rope.get("rope_type", rope.get("type"))
        known = [
            value
            for value in (
                rope.get("original_max_position_embeddings"),
                text.get("original_max_position_embeddings"),
                text.get("max_position_embeddings"),
            )
            if isinstance(value, int)
        ]
        if kind in LENGTH_DEPENDENT_ROPE and known:
            reason = f"has the position embedding `{kind}`, whose factors change beyond {min(known)} tokens"
            yield Limit(min(known), reason)
    chunk = text.get("attention_chunk_size")
    if isinstance(chunk, int) and "chunked_attention" in (text.get("layer_types") or ["chunked_attention"]):
        yield Limit(chunk, f"attends within chunks of {chunk} tokens")


def too_long(shape: Shape, longest: int) -> str | None:
    """Why sequences of `longest` tokens cannot be computed right here; None if nothing speaks against it."""
    for limit in length_limits(shape):
        if longest > limit.tokens:
            return (
                f"The model {limit.reason}, which is not supported; prompt and response may have {longest} "
                f"tokens. Expected at most {limit.tokens} tokens: lower rollout.max_prompt_tokens or "
                "rollout.max_response_tokens, or choose another model."
            )
    return None


def expert_count(shape: Shape) -> int:
    """Experts of a layer of a mixture; 0 of a dense model."""
    text = text_shape(shape)
    counts = [value for name in EXPERTS if isinstance(value := text.get(name), int)]
    return count if (count := max(counts, default=0)) > 1 else 0


def kv_layers(shape: Shape) -> int:
    """How many layers keep keys and values: all but those with a state of fixed size in their place."""
    text = text_shape(shape)
    kinds: object = text.get("layer_types")
    if isinstance(kinds, list | tuple) and kinds:
        return sum(kind not in WITHOUT_KV for kind in cast("list[object]", kinds))
    return (text.get("num_hidden_layers") or 0) // (text.get("full_attention_interval") or 1)


def _ropes(text: Shape) -> Iterator[Shape]:
    """The sections on position embeddings, which some models have one of for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(text.get(name), Mapping):
            section: Shape = text[name]
            yield section
            yield from (inner for inner in section.values() if isinstance(inner, Mapping))
