"""Writes and reads the trainer's checkpoints: directories that are complete or do not exist.

Invariants: a checkpoint is written under a temporary name, synced to the disk and renamed, then its folder is
synced; the rename comes after every rank has synced its own file; only complete checkpoints count as kept,
and an older one is removed only after a newer one is in place; a checkpoint whose bytes have changed since it
was written is set aside, and the one before it is used. `step_<n>/` itself is a Hugging Face model;
`step_<n>/trainer/` holds what resuming needs, one safetensors file per rank: nothing is ever unpickled.
"""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from protocol.errors import ConfigError, RunError
from protocol.files import exists, is_dir, is_file, sync
from protocol.model_files import FURTHER_TEMPLATES
from workers.models.parts import TensorPart
from workers.trainer.saved.shares import Share, Shares, stream, write_shares

log = logging.getLogger("workers")

COMPLETE = ".complete"
STATE = "trainer/state.safetensors"
CHECKSUMS = "trainer/checksums.json"
WEIGHT = "model."  # prefix of the weights' names in the state
CHUNK_BYTES = 4 << 20
NAME = re.compile(r"step_[0-9]{1,18}")
ADAPTER_CONFIG = "adapter_config.json"
MODEL_CONFIGS = ("config.json", "generation_config.json")  # not copied for an adapter
OF_THE_CONTROLLER = "config.yaml"  # in every run directory before a worker can attach
REFUSED = "refused: "  # before what a rank has in place of a checksum
SEEN_S = 60.0  # in this time a network file system shows a file that another host has made
WEIGHT_FILES = re.compile(r".*\.(safetensors|bin|pt|pth|h5|msgpack|gguf)(\.index\.json)?$")


class Among(NamedTuple):
    """A writer's rank among the ranks that write one checkpoint."""

    rank: int = 0
    size: int = 1
    meet: Callable[[str], Sequence[str]] = lambda checksum: [checksum]
    """Send rank 0 the checksum of the written file, or why there is none; on rank 0, returns all of them."""

    def file(self, rank: int) -> str:
        """Name of a rank's file in the checkpoint."""
        return STATE if self.size == 1 else f"trainer/state-{rank + 1:05}-of-{self.size:05}.safetensors"


ALONE = Among()


def require_run_directory(path: Path) -> None:
    """Wait until the controller's file is seen in the run directory, before anything is written there.

    Raises: ConfigError if it does not appear: the directory is on a disk of this host alone, and a checkpoint
    there would be lost to the run.
    """
    file, deadline = path / OF_THE_CONTROLLER, time.monotonic() + SEEN_S
    if not exists(file):
        log.warning("%s is not to be seen; it is looked for for %g s.", file, SEEN_S)
    while not exists(file):
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"There is no {file}, which the controller has written: the run directory of this host is "
                "another one, and a checkpoint in it would be lost to the run. Expected a file system that "
                "controller and trainer share, at the same path on both: set run.dir to a folder on one "
                "(cluster.shared_dir, if `launch.py render` wrote the files)."
            )
        time.sleep(1.0)


def aside_of(directory: Path, policy_version: int) -> Path:
    """The folder in which a checkpoint is written until it is complete."""
    return directory / f".step_{policy_version}.partial"


def prepare(directory: Path, policy_version: int) -> None:
    """Make the folder of a new checkpoint, before any rank writes to it. Raises: RunError."""
    aside = aside_of(directory, policy_version)
    try:
        if exists(aside):
            shutil.rmtree(aside)
        (aside / "trainer").mkdir(parents=True)
    except OSError as error:
        raise _refused(directory / f"step_{policy_version}", error) from error


def write_share(
    directory: Path, policy_version: int, *, state: Mapping[str, Share], among: Among
) -> tuple[str, ...]:
    """Write one rank's file and send rank 0 its checksum; on rank 0, returns the checksums of all files.

    Raises: RunError if the file system refuses, here or, on rank 0, at another rank.
    """
    path, file = directory / f"step_{policy_version}", among.file(among.rank)
    try:
        whole = aside_of(directory, policy_version) / file
        write_shares(whole, state, metadata={"policy_version": str(policy_version)})
        sync(whole)
        checksum = _checksum(whole)
    except (OSError, SafetensorError) as error:  # the latter for a disk without room
        if among.rank:
            among.meet(f"{REFUSED}{error}")
        raise _refused(path, error) from error
    sums = tuple(among.meet(checksum))
    for rank, told in enumerate(sums):
        if told.startswith(REFUSED):
            raise _refused(path, f"rank {rank} could not write its part, {told.removeprefix(REFUSED)}")
    return sums


def write_checkpoint(
    directory: Path,
    policy_version: int,
    *,
    model_directory: Path,
    state: Mapping[str, Share],
    dtype: torch.dtype,
    keep: int,
    adapter: Mapping[str, object] | None = None,
    layout: Mapping[str, TensorPart] | None = None,
    buffers: Collection[str] = (),
    among: Among = ALONE,
) -> Path:
    """Write `directory/step_<policy_version>`, remove older checkpoints beyond `keep`; returns its path.

    `state` is this rank's part of the state that `read_state` returns. Its tensors named `model.` become
    model.safetensors next to the config and tokenizer of `model_directory`, rounded to `dtype` except
    `buffers`. With `adapter`, the content of adapter_config.json, the files are those of an adapter in peft's
    format. `layout`: the tensors of model.safetensors as parts of the state's tensors. Call `prepare` before.
    Raises: RunError if the file system refuses.
    """
    path, aside = directory / f"step_{policy_version}", aside_of(directory, policy_version)
    try:
        for leftover in directory.glob(".step_*.partial"):
            if leftover.name.endswith(".replaced.partial") or _version_of(leftover) < policy_version:
                _remove(leftover)
        sums = write_share(directory, policy_version, state=state, among=among)
        if adapter is None:
            _copy_model_files(model_directory, aside, dtype=dtype)
        else:
            _copy_small_files(model_directory, aside, without=MODEL_CONFIGS)
            (aside / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2) + "\n")
        files, weights = [among.file(rank) for rank in range(among.size)], aside / _weights_name(aside)
        _export(weights, Shares([aside / file for file in files]), dtype, layout or {}, buffers)
        known = dict(zip(files, sums, strict=True)) | {weights.name: _checksum(weights)}
        (aside / CHECKSUMS).write_text(json.dumps(known, indent=1) + "\n")
        (aside / COMPLETE).touch()  # no reader looks under this name yet
        for file in [*aside.rglob("*"), aside]:
            sync(file)
        if exists(path):  # the run went back and reached this version again: the newer one counts
            path.rename(directory / f".step_{policy_version}.replaced.partial")
        aside.rename(path)
        sync(directory)
    except (OSError, SafetensorError, RunError) as error:
        shutil.rmtree(aside, ignore_errors=True)  # it may hold what room there was
        if isinstance(error, RunError):
            raise
        raise _refused(path, error, model_directory if adapter is None else None) from error
    _thin_out(directory, policy_version, keep)
    return path


def _thin_out(directory: Path, policy_version: int, keep: int) -> None:
    """Remove the oldest checkpoints, so that `keep` are left, including this version's."""
    older = [old for old in _complete_checkpoints(directory) if _version_of(old) < policy_version]
    for old in older[: max(0, len(older) + 1 - keep)]:
        _remove(old)


def _remove(path: Path) -> None:
    """Remove a checkpoint if the file system allows it; a failure must not lose a newer checkpoint."""
    try:
        if path.is_symlink():
            path.unlink()  # the user has moved it, and keeps it there
        else:
            shutil.rmtree(path)
    except OSError as error:
        log.warning("%s could not be removed, and takes room until you do: %s", path, error)


def _refused(path: Path, error: Exception | str, model_directory: Path | None = None) -> RunError:
    is_gone = model_directory is not None and not is_file(model_directory / "config.json")
    if is_gone and isinstance(error, FileNotFoundError):
        return RunError(
            f"The checkpoint {path} could not be written ({error}): {model_directory}, from which it takes "
            "tokenizer and configuration, has no config.json any more. Put the model back, and the same "
            "command goes on. Another run removes its older checkpoints (trainer.keep_checkpoints): copy one "
            "before a run begins from it."
        )
    return RunError(
        f"The checkpoint {path} could not be written: {error}. Expected a writable directory with room "
        "for the weights and twice as much again for the optimizer; free some and resume."
    )


def _export(
    file: Path, state: Shares, dtype: torch.dtype, layout: Mapping[str, TensorPart], buffers: Collection[str]
) -> None:
    """Write the weights of a state as one file, a tensor at a time."""
    own = [name.removeprefix(WEIGHT) for name in state if name.startswith(WEIGHT)]
    parts = layout or {name: TensorPart(name) for name in own}
    shapes = {}
    for name, part in parts.items():
        kept, shape = state.dtype(WEIGHT + part.own), state.shape(WEIGHT + part.own)
        is_rounded = kept.is_floating_point and part.own not in buffers
        shapes[name] = (dtype if is_rounded else kept, part.shape(shape))
    metadata = {"format": "pt", "policy_version": state.metadata["policy_version"]}

    def tensor_of(name: str) -> torch.Tensor:
        part = parts[name]
        if part.expert is None:
            return state[WEIGHT + part.own]
        return part._replace(expert=0).of(state.part(WEIGHT + part.own, part.expert, 1))

    stream(file, shapes, tensor_of, metadata=metadata)


def read_state(path: Path) -> tuple[int, Shares]:
    """The policy version and trainer state of a checkpoint. Raises: RunError if it is incomplete."""
    files = sorted((path / "trainer").glob("state*.safetensors"))
    if not exists(path / COMPLETE) or not files:
        raise RunError(
            f"{path} is not a complete checkpoint: expected {COMPLETE} and trainer/state.safetensors in it. "
            "Choose another step_<n> of the run's checkpoints."
        )
    state = Shares(files)
    return int(state.metadata["policy_version"]), state


def newest_checkpoint(directory: Path, *, at_most: int | None = None, is_first: bool = True) -> Path | None:
    """The newest undamaged checkpoint in the directory, of version `at_most` or older; None if there is none.

    Checkpoints that were cut off during writing, or have lost or changed bytes since, are skipped with a
    warning in the log. `is_first`: this rank sets damaged checkpoints aside, so that they do not count among
    those that are kept; of several ranks that call this, exactly one.
    """
    for path in sorted(directory.glob(".step_*.partial")):
        log.warning("%s was cut off while it was written, and is not used.", path)
    for path in sorted(directory.glob("step_*")):
        if not NAME.fullmatch(path.name):
            log.warning("%s is no checkpoint: expected a name like step_20. It is passed over.", path)
    for path in reversed(_checkpoints(directory)):
        if at_most is not None and _version_of(path) > at_most:
            log.warning("%s is not used: the run, as run.db has it, has made %d versions.", path, at_most)
        elif damage := _damage(path):
            log.warning("%s is not used: %s. The checkpoint before it is.", path, damage)
            if is_first:
                _set_aside(path)
        else:
            return path
    return None


def remove_cut_off(directory: Path) -> None:
    """Remove checkpoints that were cut off during writing; call it while no rank writes."""
    for path in directory.glob(".step_*.partial"):
        if not path.name.endswith(".replaced.partial"):  # whole, until the next save
            _remove(path)


def _set_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.damaged")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        log.warning("It is now %s; remove it if you have no use for it.", aside)
    except OSError as error:
        log.warning("It stays, and counts among those that are kept: %s", error)


def _damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used; None if it can."""
    if not exists(path / COMPLETE):
        return f"it has no {COMPLETE}, which is written last, so it was cut off"
    sums, problem = _checksums(path)
    for name in sums or (STATE, _weights_name(path)):
        try:
            with safe_open(path / name, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{Path(name).name} is damaged or gone ({error})"
    for name, expected in sums.items():
        try:
            is_same = _checksum(path / name) == expected
        except OSError as error:  # a bad block, or another rank has set it aside meanwhile
            return f"{Path(name).name} cannot be read ({error})"
        if not is_same:
            return f"{Path(name).name} has other bytes than were written"
    return problem


def _checksums(path: Path) -> tuple[dict[str, str], str | None]:
    """The checksums by file, and what is wrong with them; empty if an earlier release wrote none."""
    try:
        sums = json.loads((path / CHECKSUMS).read_bytes())
        if not isinstance(sums, dict):
            raise ValueError(f"expected names and checksums, not {sums!r:.40}")
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError) as error:
        return {}, f"{Path(CHECKSUMS).name} is damaged ({error})"
    return sums, None


def _checksum(file: Path) -> str:
    """The xxh3 checksum of a file's content, hexadecimal."""
    found, descriptor = xxhash.xxh3_128(), os.open(file, os.O_RDONLY)
    try:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            found.update(chunk)
    finally:
        os.close(descriptor)
    return found.hexdigest()


def _weights_name(path: Path) -> str:
    return "adapter_model.safetensors" if exists(path / ADAPTER_CONFIG) else "model.safetensors"


def _copy_small_files(source: Path, target: Path, *, without: Collection[str] = ()) -> None:
    for file in source.iterdir():
        is_weights = file.name.startswith(".") or WEIGHT_FILES.match(file.name)
        if is_file(file) and not is_weights and file.name not in without:
            shutil.copyfile(file, target / file.name)
    for file in source.glob(f"{FURTHER_TEMPLATES}/*.jinja"):
        (target / FURTHER_TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(file, target / FURTHER_TEMPLATES / file.name)


def _copy_model_files(source: Path, target: Path, *, dtype: torch.dtype) -> None:
    _copy_small_files(source, target)
    config = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _checkpoints(directory: Path) -> list[Path]:
    """Raises: OSError if the folder is there and cannot be read; `glob` would find nothing in it."""
    there = directory.iterdir() if is_dir(directory) else ()
    return sorted((path for path in there if NAME.fullmatch(path.name)), key=_version_of)


def _complete_checkpoints(directory: Path) -> list[Path]:
    return [path for path in _checkpoints(directory) if exists(path / COMPLETE)]


def _version_of(path: Path) -> int:
    return int(path.name.strip(".").removeprefix("step_").partition(".")[0])
