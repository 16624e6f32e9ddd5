"""Adds peft's LoRA layers to the trainer's model.

Invariants: every rank begins with the same adapter, whose B is 0, so version 0 is the model itself; the model
is frozen, and the adapter is float32 whatever the model's precision; peft is imported only if a run uses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from protocol.model_shape import expert_count
from protocol.trainer.adapters import LoraSettings
from workers.models.lora import PREFIX, adapter_config, target_layers

ADAPTER = "policy"  # peft's name of the only adapter; not in any file


def add_adapter(model: PreTrainedModel, lora: LoraSettings, *, seed: int) -> list[str]:
    """Add an adapter to the model's layers, in place, before the model is sharded; returns their names.

    Raises: ConfigError if peft is missing, or the model has no such layers.
    """
    try:
        from peft import PeftConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"`trainer.lora.rank` is {lora.rank}, but peft cannot be imported here: {error}. Install it "
            "where the trainer runs: pip install -e '.[workers,lora]'; or set trainer.lora.rank: 0."
        ) from error
    layers = list(target_layers(model, lora))
    config = PeftConfig.from_peft_type(**adapter_config(lora, layers, str(model.name_or_path)))
    config.inference_mode = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            # of a mixture not the model itself: peft would put adapters of shared layers beside the experts
            has_experts = expert_count(model.config.to_dict()) > 0
            into = torch.nn.ModuleList([model]) if has_experts else model
            inject_adapter_in_model(config, into, adapter_name=ADAPTER)
        except ValueError as error:
            raise ConfigError(
                f"peft puts no adapter into {type(model).__name__}: {error}. Expected layers that it takes; "
                "name others by trainer.lora.target_modules, or set trainer.lora.rank: 0."
            ) from error
    for parameter in adapter_tensors(model).values():
        parameter.data = parameter.data.float()  # peft uses the layer's dtype
    return layers


def adapter_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The adapter's parameters by their names in peft's files; {} for a model without an adapter."""
    return {
        PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
        for name, parameter in model.named_parameters()
        if f".{ADAPTER}." in name and ".lora_" in name
    }


@contextmanager
def without_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Disable the adapter in this context; a model without an adapter is left as it is."""
    if not adapter_tensors(model):
        yield
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
