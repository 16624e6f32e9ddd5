"""Loads new weights into a running vLLM by its own reload, after checking every name and shape.

Invariants: tensors that do not fit are refused before anything is changed, since a reload that fails half way
leaves a model that was never published; workers in other processes read the tensors from shared memory, or
from a disk if that has no room, and they are removed afterwards; in shared memory also after a kill.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from protocol import segments
from protocol.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
Reach = Callable[..., list[Any]]
"""`reach(method, **given)`: calls the method on each of vLLM's workers."""


def checkpoint_shapes(directory: str | Path) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor in a model's safetensors files, from their headers.

    Raises: ConfigError if there are none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(Path(directory).glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    if not shapes:
        raise ConfigError(
            f"The model at {directory} has no safetensors files, which tell the vLLM engine what an update "
            "must hold; save it again with save_pretrained, or set `rollout.engine: torch`."
        )
    return shapes


def fitting(tensors: Mapping[str, torch.Tensor], shapes: Shapes) -> dict[str, torch.Tensor]:
    """The tensors that the model was saved with; an additional tied output layer is left out.

    Raises: ValueError on a missing, surplus or misshapen tensor.
    """
    surplus = sorted(name for name in tensors.keys() - shapes.keys() if not _is_tied(name, tensors, shapes))
    if surplus:
        raise ValueError(f"{len(surplus)} tensors are not weights of this model, first {surplus[0]}.")
    if absent := sorted(shapes.keys() - tensors.keys()):
        raise ValueError(f"{len(absent)} of {len(shapes)} weights are missing, first {absent[0]}.")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or not tensors[name].is_floating_point():
            raise ValueError(
                f"{name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}; expected floating "
                f"point of shape {shape}."
            )
    return {name: tensors[name] for name in shapes}


def reload(reach: Reach, tensors: Mapping[str, torch.Tensor], *, is_elsewhere: bool) -> None:
    """Load these tensors, named as in the checkpoint, into vLLM, which shards, fuses and converts them."""
    if not is_elsewhere:
        reach("replace_weights", weights_iterator=iter(tensors.items()))
        return
    whole: dict[str, Any] = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with shared_folder(sum(tensor.nbytes for tensor in whole.values())) as folder:
        save_file(whole, Path(folder) / "model.safetensors")
        reach("replace_weights", weights_path=folder)


@contextmanager
def shared_folder(size_bytes: int) -> Iterator[str]:
    """A folder for files of so many bytes that other processes of this host read; removed at the end.

    In shared memory it is held, so that one of a killed process is swept (protocol/segments.py); on a disk
    it stays then, as other temporary files do.
    """
    if not segments.has_room(size_bytes):
        with tempfile.TemporaryDirectory(prefix=f"{segments.PREFIX}-") as folder:
            yield folder
        return
    prefix, place = f"{segments.PREFIX}-{os.getuid()}-", segments.SHARED_MEMORY
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as folder, segments.hold(Path(folder)):
        yield folder


def _is_tied(name: str, tensors: Mapping[str, torch.Tensor], shapes: Shapes) -> bool:
    """Whether this is the output layer of a model that was saved without one, equal to its embeddings."""
    if not name.endswith("lm_head.weight"):
        return False
    inputs = [tensors[other] for other in shapes if "embed" in other and other in tensors]
    return any(tensors[name].equal(other) for other in inputs)
