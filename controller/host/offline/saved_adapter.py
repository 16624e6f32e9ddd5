"""Reads the settings of a saved LoRA adapter: rank, scale and layers.

Invariant: an adapter that no run of StaleFlow could have made is refused.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from protocol.errors import ConfigError
from protocol.trainer.adapters import LoraSettings

ADAPTER_CONFIG = "adapter_config.json"
WEIGHT = ".weight"
OTHERWISE = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")
"""Keys of peft that change the meaning of an adapter, and that runs do not use."""


def lora_of(directory: Path) -> LoraSettings:
    """The settings with which the adapter in this folder was trained.

    Raises: ConfigError if the file cannot be read, or no run trains such an adapter.
    """
    file = directory / ADAPTER_CONFIG
    try:
        told = json.loads(file.read_text())
        others = [key for key in OTHERWISE if told.get(key)]
        if isinstance(told["target_modules"], str):  # a pattern; letters are no layers
            others.append("target_modules")
        by_weight = told.get("target_parameters") or ()  # how a run names layers beside experts
        if not all(name.endswith(WEIGHT) for name in by_weight):
            others.append("target_parameters")
        if told["r"] == 0:
            others.append("r")
        if told["peft_type"] != "LORA" or others:
            what = ", ".join(others) or told["peft_type"]
            raise ConfigError(
                f"{file} has {what}, which no run trains. Expected the adapter of a checkpoint; merge any "
                "other into its model with peft (merge_and_unload, save_pretrained), and evaluate the result."
            )
        layers = (*told["target_modules"], *(name.removesuffix(WEIGHT) for name in by_weight))
        return LoraSettings(rank=told["r"], alpha=float(told["lora_alpha"]), target_modules=layers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        what = " ".join(str(error).split())
        raise ConfigError(
            f"{file} cannot be read: {type(error).__name__}: {what}. Expected the adapter of a checkpoint."
        ) from None
