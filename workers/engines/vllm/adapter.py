"""A LoRA adapter in a running vLLM, through its own LoRA layers: an update consists of the adapter alone.

Invariants: vLLM holds one adapter, from before the first request on, and an update replaces it between two
scheduler steps, so running generations go on under the new one; names and shapes are checked before anything
is changed; vLLM's workers read it from a shared folder, which is removed afterwards.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig
from vllm.lora.request import LoRARequest

from protocol.trainer.adapters import LoraSettings
from workers.engines.vllm.weights import shared_folder
from workers.models.lora import (
    DIGEST,
    adapter_config,
    check_adapter,
    model_digest,
    shapes_of,
    target_layers,
    tensor_names,
)

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # with kernels in vLLM; other ranks are padded
NUMBER = 1  # vLLM's id of the only adapter


def lora_arguments(lora: LoraSettings) -> dict[str, object]:
    """Arguments of vLLM's EngineArgs; {} without an adapter."""
    if not lora.rank:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 1,
        "max_lora_rank": next(rank for rank in RANKS if rank >= lora.rank),
    }


class LoadedAdapter:
    """The adapter that every request runs under."""

    request = LoRARequest("policy", NUMBER, "loaded at the start")
    """The adapter that requests name; vLLM does not read its file again."""

    def __init__(
        self, add: "Callable[[LoRARequest], object]", lora: LoraSettings, *, directory: str,
        config: PretrainedConfig,
    ) -> None:  # fmt: skip
        """Load an adapter that changes nothing; `add` is vLLM's `add_lora`.

        Raises: ConfigError; ValueError or RunError if vLLM does not support such an adapter.
        """
        with torch.device("meta"):
            layers = target_layers(AutoModelForCausalLM.from_config(config), lora)
        self._add, self._lora, self._shapes = add, lora, shapes_of(layers)
        self._digest = model_digest(directory)
        self._config = json.dumps(adapter_config(lora, layers, directory))
        nothing = {DIGEST: self._digest}
        for name, (rows, columns) in self._shapes.items():
            a, b = tensor_names(name)
            nothing |= {a: torch.zeros(lora.rank, columns), b: torch.zeros(rows, lora.rank)}
        self.load(nothing)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the adapter. Raises: ValueError if it does not fit; then nothing has changed."""
        check_adapter(tensors, self._shapes, rank=self._lora.rank, digest=self._digest)
        with self._files(tensors) as folder:
            self._add(LoRARequest("policy", NUMBER, folder, load_inplace=True))

    @contextmanager
    def _files(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items() if name != DIGEST}
        with shared_folder(sum(tensor.nbytes for tensor in whole.values())) as folder:
            save_file(whole, Path(folder) / "adapter_model.safetensors")
            (Path(folder) / "adapter_config.json").write_text(self._config)
            yield folder
