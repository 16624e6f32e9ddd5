"""Checkpoints of the trainer: directories that are complete or do not exist.

Invariants: a checkpoint is written aside, synced to the disk and renamed, then its folder is synced; only
complete ones count as kept, and an older one is removed only after a newer one is in place. `step_<n>/`
itself is a Hugging Face model; `step_<n>/trainer/` holds what resuming needs, as safetensors: nothing is ever
unpickled.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from protocol.errors import RunError

log = logging.getLogger("workers")

COMPLETE = ".complete"
ADAPTER_CONFIG = "adapter_config.json"
MODEL_CONFIGS = ("config.json", "generation_config.json")  # an adapter's model has its own
WEIGHT_FILES = re.compile(r".*\.(safetensors|bin|pt|pth|h5|msgpack|gguf)(\.index\.json)?$")


def write_checkpoint(
    directory: Path,
    policy_version: int,
    *,
    model_directory: Path,
    published: Mapping[str, torch.Tensor],
    state: Mapping[str, torch.Tensor],
    keep: int,
    adapter: Mapping[str, object] | None = None,
) -> Path:
    """The path of the new checkpoint `directory/step_<policy_version>`; older ones beyond `keep` are removed.

    `published` becomes model.safetensors next to the config and tokenizer of `model_directory`; `state` is
    what `read_state` gives back. With `adapter`, the content of adapter_config.json, the files are those of
    an adapter in peft's format. Raises: RunError if the file system refuses.
    """
    path, aside = directory / f"step_{policy_version}", directory / f".step_{policy_version}.partial"
    try:
        for leftover in directory.glob(".step_*.partial"):
            shutil.rmtree(leftover)
        (aside / "trainer").mkdir(parents=True)
        if adapter is None:
            _copy_model_files(model_directory, aside, dtype=next(iter(published.values())).dtype)
        else:
            _copy_small_files(model_directory, aside, without=MODEL_CONFIGS)
            (aside / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2) + "\n")
        metadata = {"policy_version": str(policy_version)}
        save_file(dict(published), aside / _weights_name(aside), metadata={"format": "pt", **metadata})
        save_file(dict(state), aside / "trainer" / "state.safetensors", metadata=metadata)
        (aside / COMPLETE).touch()  # under this name nobody looks for it yet
        for file in [*aside.rglob("*"), aside]:
            sync(file)
        if path.exists():  # a run that went back and came here again: the newer one counts
            path.rename(directory / f".step_{policy_version}.replaced.partial")
        aside.rename(path)
        sync(directory)
        for old in _complete_checkpoints(directory)[:-keep]:
            shutil.rmtree(old)
    except OSError as error:
        raise RunError(
            f"The checkpoint {path} could not be written: {error}. Expected a writable directory with room "
            "for the weights and twice as much again for the optimizer; free some and resume."
        ) from error
    return path


def read_state(path: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """Policy version and trainer state of a checkpoint. Raises: RunError if it is not a complete one."""
    file = path / "trainer" / "state.safetensors"
    if not (path / COMPLETE).exists() or not file.exists():
        raise RunError(
            f"{path} is not a complete checkpoint: expected {COMPLETE} and trainer/state.safetensors in it. "
            "Choose another step_<n> of the run's checkpoints."
        )
    with safe_open(file, framework="pt") as content:
        state = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
        return int(content.metadata()["policy_version"]), state


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint in the directory; None if there is none, or no directory.

    What was cut off while it was written, or has lost bytes since, is passed over, and said so in the log.
    """
    for path in sorted(directory.glob(".step_*.partial")):
        log.warning("%s was cut off while it was written, and is not used.", path)
    for path in sorted(directory.glob("step_*"), key=_version_of, reverse=True):
        if not (damage := _damage(path)):
            return path
        log.warning("%s is not used: %s. The checkpoint before it is.", path, damage)
    return None


def _damage(path: Path) -> str | None:
    """What keeps a checkpoint from being used; None if nothing does."""
    if not (path / COMPLETE).exists():
        return f"it has no {COMPLETE}, which is written last, so it was cut off"
    for file in (path / "trainer" / "state.safetensors", path / _weights_name(path)):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{file.name} is damaged or gone ({error})"
    return None


def _weights_name(path: Path) -> str:
    return "adapter_model.safetensors" if (path / ADAPTER_CONFIG).exists() else "model.safetensors"


def _copy_small_files(source: Path, target: Path, *, without: Collection[str] = ()) -> None:
    for file in source.iterdir():
        is_weights = file.name.startswith(".") or WEIGHT_FILES.match(file.name)
        if file.is_file() and not is_weights and file.name not in without:
            shutil.copyfile(file, target / file.name)


def _copy_model_files(source: Path, target: Path, *, dtype: torch.dtype) -> None:
    _copy_small_files(source, target)
    config = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _complete_checkpoints(directory: Path) -> list[Path]:
    return sorted((path for path in directory.glob("step_*") if (path / COMPLETE).exists()), key=_version_of)


def _version_of(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def sync(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
