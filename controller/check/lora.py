"""Checks a LoRA run before it starts, by the names and shapes of the model's weights.

Invariant: no weight is loaded, and peft is not imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from controller.check.source import find_module
from controller.config.models import Config
from protocol.model_shape import EXPERT_WEIGHT

Shapes = Mapping[str, tuple[int, ...]]
EMBEDDINGS = ("embed", "wte", "wpe")  # parts of names of matrices that are in no linear layer
OUTPUTS = ("lm_head", "embed_out", "output")  # the last part of an output layer's name


def adapter_problems(config: Config, shape: Mapping[str, Any], weights: Shapes) -> Iterator[tuple[str, str]]:
    """(field, text) of each problem of a run with `trainer.lora`.

    `shape` is the model's config.json and `weights` the shapes of its tensors by name; both are {} before the
    model is made.
    """
    lora = config.trainer.lora
    if not lora.rank:
        return
    if config.trainer.local and find_module("peft") is None:
        yield (
            "trainer.lora.rank",
            f"is {lora.rank}, which needs peft, which is not installed here: pip install -e "
            "'.[workers,lora]'; or set it to 0 to train the whole model.",
        )
    layers = _layers(weights)
    if not layers:
        return
    for target in lora.target_modules:
        if not any(_ends_in(layer, target) for layer in layers):
            known = sorted({layer.rpartition(".")[2] for layer in layers})
            yield (
                "trainer.lora.target_modules",
                f"names {target}, and no linear layer of {config.model.path} ends in it; it has "
                f"{', '.join(known)}.",
            )
    is_tied = shape.get("tie_word_embeddings", False)
    tied = [target for target in lora.target_modules if target.rpartition(".")[2] in OUTPUTS]
    if is_tied and tied:
        yield (
            "trainer.lora.target_modules",
            f"names {tied[0]}, which shares its weight with the input embeddings of this model, so that "
            "merging would change both; leave it out.",
        )


def adapter_parameters(config: Config, weights: Shapes) -> int:
    """Number of the adapter's parameters; 0 without an adapter."""
    lora, layers = config.trainer.lora, _layers(weights)
    return lora.rank * sum(
        sum(shape)
        for layer, shape in layers.items()
        if any(_ends_in(layer, target) for target in lora.target_modules)
        or (not lora.target_modules and layer.rpartition(".")[2] not in OUTPUTS)
    )


def _layers(weights: Shapes) -> dict[str, tuple[int, ...]]:
    return {
        name.removesuffix(".weight"): shape
        for name, shape in weights.items()
        if name.endswith(".weight")
        and len(shape) == 2
        and not any(part in name for part in EMBEDDINGS)
        and not EXPERT_WEIGHT.search(name)  # the trainer holds experts together, in no linear layer
    }


def _ends_in(layer: str, target: str) -> bool:
    return layer == target or layer.endswith(f".{target}")
