"""A model whose weights have no memory yet, for an engine that shares its device and gets weights by a pull.

Invariant: at most one weight has memory at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from protocol.errors import ConfigError
from protocol.files import is_file
from workers.models.model import keep_float32
from workers.models.model_config import read_model_config


def unfilled_causal_lm(directory: str | Path, *, dtype: str, device: torch.device) -> PreTrainedModel:
    """The model in `directory`, in evaluation mode; each weight has its shape, and storage of 0 bytes.

    Raises: ConfigError if the directory holds no causal language model.
    """
    config = read_model_config(directory)
    try:
        with no_init_weights(), _weights_on("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
            model.tie_weights()
            keep_float32(model, getattr(torch, dtype))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(
            f"The model at {directory} cannot be made from its configuration: {type(error).__name__}: "
            f"{error} Expected what AutoModelForCausalLM.from_config makes; leave `placement: colocated` out."
        ) from error
    if is_file(Path(directory) / "generation_config.json"):
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = made.setdefault(id(weight), _without_memory(weight, device))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    return model.eval()


def _without_memory(weight: nn.Parameter, device: torch.device) -> nn.Parameter:
    tensor = torch.empty(weight.shape, dtype=weight.dtype, device=device)
    tensor.untyped_storage().resize_(0)
    return nn.Parameter(tensor, requires_grad=False)


@contextmanager
def _weights_on(device: str) -> Iterator[None]:
    """Move each weight to this device when a module gets it; buffers, which versions lack, stay."""
    register = nn.Module.register_parameter

    def move(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != device:
            self._parameters[name] = nn.Parameter(param.to(device), requires_grad=False)

    nn.Module.register_parameter = move
    try:
        yield
    finally:
        nn.Module.register_parameter = register
