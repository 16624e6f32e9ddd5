"""The small files of a model (configuration, tokenizer) for a machine that has no model directory.

Also what the files of its weights tell of themselves, without a weight being read.

Invariants: weights and code are not among them; what arrives lies in a cache under the checksum of its
content, complete or not at all, and is compared with the cache each time; a name that
comes over the wire is a plain file name of a known kind, or that of a further chat template.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from protocol.errors import RemoteError
from protocol.files import exists, is_dir, is_file, sync

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.(json|txt|model|jinja|tiktoken)")
FURTHER_TEMPLATES = "additional_chat_templates"  # the only folder of a tokenizer, by transformers
TEMPLATE = re.compile(FURTHER_TEMPLATES + r"/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.jinja")
UNFINISHED = ".making."  # in the name of a folder in which a model is being made
MAX_FILES = 64
MAX_BYTES = 64 << 20
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.*", "*.tiktoken")
"""At least one of these is in a folder with a tokenizer."""
MARK = "without_weights"  # beside config.json: engines make the model from it, and pull before they sample

Files = dict[str, bytes]


def read_model_files(directory: Path) -> Files:
    """Name and content of each small file; empty if there is no model, or its files are too large."""
    names = [name for name in _small_files(directory) if not name.endswith(".index.json")]
    total = sum((directory / name).stat().st_size for name in names)
    if not is_file(directory / "config.json") or len(names) > MAX_FILES or total > MAX_BYTES:
        return {}
    return {name: (directory / name).read_bytes() for name in names}


def _small_files(directory: Path) -> list[str]:
    """Names within the directory, in order."""
    paths = [*directory.glob("*"), *directory.glob(f"{FURTHER_TEMPLATES}/*")]
    names = [path.relative_to(directory).as_posix() for path in paths if is_file(path)]
    return sorted(name for name in names if _may_be_sent(name))


def _may_be_sent(name: str) -> bool:
    return bool(NAME.fullmatch(name) or TEMPLATE.fullmatch(name))


def vocabulary_of(directory: Path) -> int | None:
    """Tokens that the model in a directory knows, by its config.json; None if that cannot be told."""
    try:
        found = json.loads((directory / "config.json").read_bytes())
        size = found.get("vocab_size") or found.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):  # whatever loads the model says what is wrong
        return None
    return size if type(size) is int and size > 0 else None


def missing_shards(directory: Path) -> list[str]:
    """Files that the index of a model's weights names and that are not there: after a partial download."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if exists(directory / whole):
            return []
        try:
            named: object = json.loads((directory / f"{whole}.index.json").read_bytes())[
                "weight_map"
            ].values()
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading the model says it
            return []
        names = {name for name in cast("Iterable[object]", named) if isinstance(name, str)}
        return sorted(name for name in names if not exists(directory / name))
    return []


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in a safetensors file, from its header. Raises: OSError, ValueError."""
    actual = file.stat().st_size
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > actual:
            raise ValueError(f"{file.name} is cut off, or a pointer of Git LFS in its place (`git lfs pull`)")
        header: dict[str, Any] = json.loads(stream.read(size))  # whatever a file holds
    try:
        tensors = {name: one for name, one in header.items() if name != "__metadata__"}
        whole = 8 + size + max((one["data_offsets"][1] for one in tensors.values()), default=0)
        shapes = {name: tuple(one["shape"]) for name, one in tensors.items()}
    except (AttributeError, KeyError, TypeError, IndexError):
        raise ValueError(f"{file.name} is no safetensors file: its header tells no shapes") from None
    if whole > actual:
        raise ValueError(f"{file.name} is cut off: it has {actual:,} bytes, and its header tells {whole:,}")
    return shapes


def digest_of(files: Files) -> str:
    """Checksum of names and contents, hexadecimal."""
    found = hashlib.sha256()
    for name, content in sorted(files.items()):
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def note_of(directory: Path) -> Path:
    """The file beside a model that a factory has made, which says how: by which factory and seed."""
    return directory.with_name(f"{directory.name}.json")


@contextmanager
def made_aside(directory: Path, *, maker: str) -> Generator[Path]:
    """A new folder in which a model is made before it gets its name; what is left in it is removed."""
    aside, held = _held(f"{_prefix(directory)}{maker}.", directory.parent)
    try:
        yield aside
    finally:
        os.close(held)
        shutil.rmtree(aside, ignore_errors=True)


def _held(prefix: str, folder: Path) -> tuple[Path, int]:
    """A new folder in this one, and the descriptor that keeps a lock on it."""
    while True:
        aside = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
        with suppress(FileNotFoundError):  # another run took it for a leftover before it was locked
            held = os.open(aside, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_SH)
            if exists(aside):
                return aside, held
            os.close(held)


def remove_unfinished(directory: Path, *, killed: str | None = None) -> None:
    """Remove the folders that killed makers of this model left, and none that a maker of this host works in.

    `killed`: a maker that was killed just now, and may not have ended yet.
    """
    for leftover in directory.parent.glob(f"{_prefix(directory)}*"):
        if killed is not None and leftover.name.startswith(f"{_prefix(directory)}{killed}."):
            shutil.rmtree(leftover, ignore_errors=True)
            continue
        with suppress(OSError):  # another run makes it, or its file system has no locks
            held = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(held)


def _prefix(directory: Path) -> str:
    """How the names of the folders begin in which this model is made; the name of the maker follows."""
    return f".{directory.name}{UNFINISHED}"


def keep_model_files(names: tuple[str, ...], contents: tuple[bytes, ...], digest: str) -> Path:
    """The directory in the cache that holds these files now.

    Raises: RemoteError if they are not what was sent, or not what such files may be.
    """
    files = dict(zip(names, contents, strict=True))
    if bad := [name for name in names if not _may_be_sent(name)]:
        raise RemoteError(f"The controller sent {bad[0]!r} as a file of the model; that is no such name.")
    if digest_of(files) != digest or sum(map(len, contents)) > MAX_BYTES or "config.json" not in files:
        raise RemoteError(f"The model's files do not have the checksum {digest}, or are incomplete.")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(base) / "staleflow" / "models" / digest
    if is_dir(target):
        if read_model_files(target) != files or not exists(target / MARK):
            _write_files(target, files)  # a crash, a full disk or a hand has changed it since
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".new.", dir=target.parent))
    try:
        _write_files(aside, files)
        aside.rename(target)
        sync(target.parent)
    except OSError:
        if not is_dir(target):  # else another worker of this machine was faster
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _write_files(directory: Path, files: Files) -> None:
    """Make a folder hold these files and no others of their kinds, each whole at any moment."""
    for name in _small_files(directory):
        if name not in files:
            (directory / name).unlink(missing_ok=True)
    for name, content in files.items():
        folder = (directory / name).parent
        folder.mkdir(exist_ok=True)
        aside = folder / f".new.{os.getpid()}.{Path(name).name}"  # other workers here may write it, too
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(directory / name)
    (directory / MARK).touch()
    for folder in {directory, *((directory / name).parent for name in files)}:
        sync(folder)
