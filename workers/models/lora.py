"""A LoRA adapter as a policy version, and its merging into an engine's model.

Invariants: a version holds only the adapter, under peft's own names, and the digest of its base model; a
version that does not fit is refused before anything is changed; every merge starts from the kept weights of
the model, so errors do not accumulate. peft itself is not needed here.
Source: LoRA (arXiv 2106.09685): weight + alpha / rank * B @ A.
"""

import json
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from protocol.files import is_file
from protocol.trainer.adapters import LoraSettings

PREFIX = "base_model.model."  # peft's prefix of every name in its files
DIGEST = "staleflow.model_digest"  # the tensor of a version that identifies the model
WEIGHT_FILES = ("*.safetensors", "*.bin")
OF_EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names that peft takes for the experts' in a mixture (`transformers_weight_conversion` of peft)."""
Shapes = Mapping[str, tuple[int, int]]
"""[out, in] of every layer that has an adapter, by name."""
Tensors = Mapping[str, torch.Tensor]


def target_layers(model: PreTrainedModel, lora: LoraSettings) -> dict[str, nn.Linear]:
    """The linear layers that get an adapter, by name.

    Raises: ConfigError if one of `target_modules` is not there, or cannot have one.
    """
    # not subclasses: routers of experts are some, and compute more than a product
    linear = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    output, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    chosen = {
        name: layer for name, layer in linear.items()
        if is_target(name, lora.target_modules) and (lora.target_modules or layer is not output)
    }  # fmt: skip
    absent = [one for one in lora.target_modules if not any(is_target(name, (one,)) for name in linear)]
    if absent or not chosen:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise ConfigError(
            f"`trainer.lora.target_modules` names {', '.join(absent) or 'no layer'}, which is no linear "
            f"layer of this {type(model).__name__}. Expected some of {', '.join(known)}; or leave it out, "
            "for all of them."
        )
    tied = [name for name, layer in chosen.items() if layer.weight is getattr(inputs, "weight", None)]
    if tied:
        raise ConfigError(
            f"`trainer.lora.target_modules` names {tied[0]}, which shares its weight with the input "
            "embeddings of this model: merging would change both. Leave it out."
        )
    return chosen


def is_target(layer: str, targets: Iterable[str]) -> bool:
    """Whether a layer is one of `targets` by peft's rule: the last parts of its name; () is every layer."""
    return not targets or any(layer == one or layer.endswith(f".{one}") for one in targets)


def shapes_of(layers: Mapping[str, nn.Linear]) -> dict[str, tuple[int, int]]:
    """The [out, in] of each layer."""
    return {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}


def tensor_names(layer: str) -> tuple[str, str]:
    """The names of a layer's A and B in peft's files."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def adapter_config(lora: LoraSettings, layers: Iterable[str], directory: str | Path) -> dict[str, object]:
    """The content of adapter_config.json: a LoRA that vLLM loads; so do peft and transformers if dense."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(directory),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(lora.target_modules or {name.rpartition(".")[2] for name in layers}),
        "inference_mode": True,
    }


def saved_config(
    lora: LoraSettings, layers: Iterable[str], directory: str | Path, *, has_experts: bool
) -> dict[str, object]:
    """The content of adapter_config.json in a checkpoint: like `adapter_config`, read rightly by peft itself.

    In a mixture, peft would put an adapter of a `down_proj` beside the experts, instead of into the dense or
    shared layer of that name; named by its weight it goes where it belongs.
    """
    config = adapter_config(lora, layers, directory)
    by_weight = [f"{name}.weight" for name in layers if name.rpartition(".")[2] in OF_EXPERTS]
    if not has_experts or not by_weight:
        return config
    targets = lora.target_modules or {name.rpartition(".")[2] for name in layers}
    by_name = [name for name in sorted(targets) if name.rpartition(".")[2] not in OF_EXPERTS]
    return config | {"target_modules": by_name, "target_parameters": sorted(by_weight)}


def model_digest(directory: str | Path) -> torch.Tensor:
    """A digest, uint8 [16], of a model's weight files: equal on every host with the same files.

    Raises: ConfigError if there are none.
    """
    files = sorted(path for pattern in WEIGHT_FILES for path in Path(directory).glob(pattern))
    found = xxhash.xxh3_128()
    for path in files:
        found.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found.update(content)
    if not files:
        raise ConfigError(
            f"{directory} has no weights, and `trainer.lora.rank` is not 0: versions hold an adapter, which "
            "needs the model on every host. Copy the model directory to this machine, and name it: "
            "model.path=DIR."
        )
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)


def check_adapter(tensors: Tensors, shapes: Shapes, *, rank: int, digest: torch.Tensor) -> None:
    """Check a version's tensors against these layers, and its base model against the local one.

    Raises: ValueError on a missing, surplus or misshapen tensor, or if it belongs to another model.
    """
    expected: dict[str, tuple[int, ...]] = {DIGEST: tuple(digest.shape)}
    for layer, (rows, columns) in shapes.items():
        name_a, name_b = tensor_names(layer)
        expected |= {name_a: (rank, columns), name_b: (rows, rank)}
    if surplus := sorted(tensors.keys() - expected.keys()):
        raise ValueError(f"{len(surplus)} tensors are no part of this adapter, first {surplus[0]}.")
    if absent := sorted(expected.keys() - tensors.keys()):
        raise ValueError(f"{len(absent)} of {len(expected)} tensors are missing, first {absent[0]}.")
    for name, shape in expected.items():
        is_kind = tensors[name].is_floating_point() or name == DIGEST
        if tuple(tensors[name].shape) != shape or not is_kind:
            raise ValueError(
                f"{name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}; expected floating "
                f"point of shape {shape}."
            )
    if not torch.equal(tensors[DIGEST], digest):
        theirs, ours = (bytes(tensor.tolist()).hex() for tensor in (tensors[DIGEST], digest))
        raise ValueError(
            f"The adapter belongs to a model whose weight files have the digest {theirs}; those here have "
            f"{ours}. Copy the trainer's model directory to this machine."
        )


def read_adapter(directory: str | Path, model: str | Path) -> dict[str, torch.Tensor]:
    """The adapter of a checkpoint, as a policy version.

    Its base model is the one that its file names, if that is on this machine, else `model`. Raises:
    ConfigError if it cannot be read.
    """
    folder = Path(directory)
    try:
        named = Path(json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"])
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(
            f"The adapter {folder} cannot be read: {error}. Expected a whole checkpoint."
        ) from None
    return tensors | {DIGEST: model_digest(named if is_file(named / "config.json") else model)}


class MergedAdapter:
    """A model with the newest adapter merged into its weights: generation costs nothing extra."""

    def __init__(self, model: PreTrainedModel, lora: LoraSettings, directory: str | Path) -> None:
        """Keep the original weights of the adapted layers in host memory. Raises: ConfigError."""
        self._layers = target_layers(model, lora)
        self._shapes, self._lora = shapes_of(self._layers), lora
        self._digest = model_digest(directory)
        self._kept = {
            name: layer.weight.detach().to("cpu", copy=True) for name, layer in self._layers.items()
        }

    @torch.no_grad()
    def load(self, tensors: Tensors) -> None:
        """Set the weights to those of the model plus this adapter, summed in float32 and rounded once.

        Raises: ValueError if it does not fit; then nothing has changed.
        """
        check_adapter(tensors, self._shapes, rank=self._lora.rank, digest=self._digest)
        scale = self._lora.alpha / self._lora.rank
        for name, layer in self._layers.items():
            a, b = (tensors[part].to(layer.weight.device, torch.float32) for part in tensor_names(name))
            weight = self._kept[name].to(layer.weight.device, torch.float32)
            layer.weight.copy_(torch.addmm(weight, b, a, alpha=scale))
