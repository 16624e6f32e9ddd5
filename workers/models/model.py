"""Loads a Hugging Face causal language model, and swaps its weights in place.

Invariants: nothing is downloaded; a loaded model is in evaluation mode, on one device, and every weight was
read from disk; a swap happens completely or not at all.
"""

import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from protocol.errors import ConfigError
from protocol.files import exists, is_file
from protocol.model_files import MARK
from workers.models.file_layout import AS_IT_IS, FileLayout, split
from workers.models.model_config import read_model_config
from workers.models.tokenizer import end_tokens


def pick_device(name: str) -> torch.device:
    """The device of a `device` setting; `auto` is the first GPU if there is one, else the CPU.

    A GPU with a number becomes that of the process, so that nothing of torch takes memory of another one.
    Raises: ConfigError if it does not exist here.
    """
    if name == "auto":
        _expect_what_is_visible()
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"Device {name!r} is unknown; expected auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"Device {name!r} was asked for, but torch sees {torch.cuda.device_count()} GPUs here. "
            "Set `device: auto` or `cpu`, or install a CUDA build of torch."
        )
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def _expect_what_is_visible() -> None:
    """Raise a ConfigError if this process was given GPUs and torch sees none: nobody asked for a CPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible not in ("", "-1") and torch.version.cuda and not torch.cuda.is_available():
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES is {visible} in this process, and torch, which was built for CUDA "
            f"{torch.version.cuda}, sees no GPU. Expected GPUs that `nvidia-smi -L` lists: mend the driver "
            "(`launch.py doctor` tries it), start the run with CUDA_VISIBLE_DEVICES set to the GPUs that it "
            "may use, or set `device: cpu`."
        )


def load_causal_lm(
    directory: str | Path,
    *,
    dtype: str | torch.dtype,
    device: str | torch.device,
    attention: str | None = None,
    needs_weights: bool = True,
) -> PreTrainedModel:
    """The model in `directory`, in evaluation mode. `attention`: a name of transformers; None: its default.

    Without `needs_weights`, a model whose small files came over the wire is made from its configuration
    alone. Raises: ConfigError if the directory is missing, holds no causal LM, or lacks weights.
    """
    directory = Path(directory)
    if not is_file(directory / "config.json"):
        raise ConfigError(
            f"There is no model at {directory}: expected a directory with config.json and weights. "
            "Point `model.path` at one, or set `model.factory` to make one."
        )
    transformers_logging.disable_progress_bar()
    torch_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    options = {} if attention is None else {"attn_implementation": attention}
    config = _without_routes(read_model_config(directory))
    try:
        if exists(directory / MARK):
            empty: Any = _make_without_weights(directory, config, torch_dtype, needs_weights)
            return empty.to(device).eval()
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=torch_dtype,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"The model at {directory} cannot be loaded as a causal language model"
            f"{f' with the attention {attention}' if attention else ''}: {type(error).__name__}: {error} "
            "Expected what AutoModelForCausalLM reads: config.json and safetensors of one architecture"
            f"{', whose attention goes through AttentionInterface' if attention else ''}."
        ) from error
    model, report = loaded
    # transformers fills absent weights with random numbers and only logs it
    if absent := sorted(report["missing_keys"]):
        raise ConfigError(
            f"The model at {directory} lacks {len(absent)} weights of a {type(model).__name__}, first "
            f"{absent[0]}. Is it a causal language model, and was it saved completely?"
        )
    return model.to(torch.device(device)).eval()


def _without_routes(config: Any) -> Any:
    """The configuration, without the auxiliary loss of a mixture, which fails while an engine decodes.

    Supervised training with that loss leaves it in config.json.
    """
    for part in (config, config.get_text_config()):
        if getattr(part, "output_router_logits", False):
            part.output_router_logits = False
    return config


def stored_names(directory: str | Path) -> list[str]:
    """Names of the weights in a model's safetensors files; [] if it has none."""
    names: list[str] = []
    for file in sorted(Path(directory).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names += tensors.keys()
    return names


def stop_tokens(generation_config: GenerationConfig | None, directory: str | Path) -> list[int]:
    """Tokens that end a response: those of the generation config, else the tokenizer's; may be empty.

    Raises: ConfigError if these are no token ids.
    """
    found = generation_config.eos_token_id if generation_config else None
    if found is None and is_file(Path(directory) / "tokenizer_config.json"):
        found = AutoTokenizer.from_pretrained(directory, local_files_only=True).eos_token_id
    return end_tokens(found, directory)


def _make_without_weights(
    directory: Path, config: Any, dtype: torch.dtype, needs_weights: bool
) -> PreTrainedModel:
    if needs_weights:
        raise ConfigError(
            f"{directory} holds what the controller sent of the model, which has no weights; training, and "
            "an adapter, begin from them. Copy the model directory to this machine, and name it: "
            "model.path=DIR."
        )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    keep_float32(model, dtype)
    if is_file(directory / "generation_config.json"):
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return model


def keep_float32(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Set weights to float32 that the family keeps so in any precision; from_config does not do it itself."""
    kept = [f"*{part}*" for part in model._get_dtype_plan(dtype)]
    for name, tensor in model.state_dict(keep_vars=True).items():
        if any(fnmatch(name, pattern) for pattern in kept):
            tensor.data = tensor.data.float()


def replace_weights(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], layout: FileLayout = AS_IT_IS
) -> None:
    """Copy `tensors`, named as in the model's files, over its weights; dtype and device are converted.

    One name of tied weights is enough, and buffers may be left out. Names of the model's state_dict are
    accepted, too. Raises: ValueError on a missing, surplus, contradictory or misshapen tensor; then nothing
    has changed.
    """
    own = model.state_dict()
    state = own | split(own, layout)
    if surplus := sorted(tensors.keys() - state.keys()):
        raise ValueError(f"{len(surplus)} tensors are not weights of this model, first {surplus[0]}.")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape or not tensor.is_floating_point():
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; expected floating point of shape "
                f"{tuple(state[name].shape)}."
            )
    given: dict[int, str] = {}
    for name in tensors:
        first = given.setdefault(state[name].data_ptr(), name)
        if first != name and not torch.equal(tensors[first], tensors[name]):
            raise ValueError(f"{first} and {name} are tied in this model, but differ in what was given.")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    parts = {name: part.own for name, part in layout.items() if part.own not in tensors}
    needed = [name for name, owner in parts.items() if owner in parameters]
    needed += parameters.keys() - set(parts.values())
    if absent := sorted(name for name in needed if state[name].data_ptr() not in given):
        raise ValueError(f"{len(absent)} of {len(needed)} weights are missing, first {absent[0]}.")
    with torch.no_grad():
        for name in given.values():
            state[name].copy_(tensors[name])
