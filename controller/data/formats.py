"""Chooses the table that reads a path, by the content found there and by the name."""

import errno
import glob
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from controller.config.data import RowSettings
from controller.data import fingerprints, taskset_rows
from controller.data.parquet import Parquet
from controller.data.procedural import PREFIX, open_procedural
from controller.data.saved import open_from_hub, open_saved
from controller.data.tables import Joined, Table
from controller.data.text_files import JsonLines, SeparatedValues
from protocol.errors import ConfigError
from protocol.files import is_dir, is_file

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SAVED = ("state.json", "dataset_dict.json", "dataset_info.json")
SUFFIXES = {".parquet": "parquet", ".csv": "separated", ".tsv": "separated", ".jsonl": "lines"}
PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip", ".lz4")
EXPECTED = (
    "a JSONL, Parquet or CSV file, a folder saved by datasets.save_to_disk, `reasoning_gym:NAME`, "
    "`verifiers:TASKSET`, or an import path `file.py:prompts`"
)

Format = Literal[
    "parquet", "separated", "lines", "saved", "hub", "procedural", "taskset", "function", "nothing"
]


def format_of(path: str) -> tuple[Format, list[str]]:
    """The format of a path, and the files that it stands for. Raises: OSError if one cannot be read."""
    if os.path.isdir(path):
        if any(is_file(Path(path) / name) for name in SAVED):
            return "saved", []
        inside = sorted(str(file) for file in Path(path).iterdir() if file.suffix.lower() in SUFFIXES)
        return (_of_file(inside[0]), inside) if inside else ("saved", [])
    if os.path.exists(path):
        return _of_file(path), [path]
    if glob.has_magic(path) and (found := sorted(glob.glob(path))):
        return _of_file(found[0]), found
    if path.startswith(PREFIX):
        return "procedural", []
    if path.startswith(taskset_rows.PREFIX):
        return "taskset", []
    if ":" in path:
        return "function", []
    is_name = HUB_NAME.fullmatch(path) and not Path(path).suffix and not is_dir(Path(path).parent)
    return ("hub" if is_name else "nothing"), []


def open_table(settings: RowSettings, most: int | None = None) -> Table:
    """The table at `settings.path`, which is no import path.

    `most`: index only the first rows of text files. Raises: ConfigError.
    """
    path = settings.path
    try:
        kind, files = format_of(path)
        mixed = [file for file in files if _of_file(file) != kind]
    except OSError as error:
        which = f"{error.filename}: " if error.filename not in (None, path) else ""
        raise ConfigError(f"data.path {path!r} cannot be read: {which}{error.strerror}.") from error
    if kind == "nothing":
        raise ConfigError(
            f"data.path is {path!r}, and there is no such file or folder in {os.getcwd()}. Expected "
            f"{EXPECTED}."
        )
    if kind == "hub":
        return open_from_hub(path, settings.subset, settings.split)
    if kind == "procedural":
        return open_procedural(path)
    if kind == "taskset":
        return taskset_rows.open_taskset(path)
    if kind == "saved":
        return open_saved(path, settings.split)
    if settings.split:
        raise ConfigError(
            f"data.split is {settings.split!r}, and data.path {path!r} is a file, which has no splits; leave "
            "split out, or name the file of that split."
        )
    _refuse_packed(path)
    if mixed:
        raise ConfigError(
            f"data.path {path!r} stands for files of several formats, such as {files[0]} and {mixed[0]}; "
            "expected one. Name those of one format by a pattern, such as `FOLDER/*.parquet`."
        )
    if kind == "parquet":
        if find_spec("pyarrow") is None:
            raise ConfigError(
                f"data.path {path!r} is Parquet, and reading it needs the package `pyarrow`. Install it (pip "
                "install -e '.[parquet]'), or write the prompts to a JSONL file."
            )
        return Parquet(files)
    parts = [(SeparatedValues if kind == "separated" else JsonLines)(file, most) for file in files]
    if len(parts) == 1:
        return parts[0]
    return Joined(parts, lambda: fingerprints.of_files(files, sum(map(len, parts))))


def _refuse_packed(path: str) -> None:
    """Raises: ConfigError if a file of a folder is compressed, and would be left out."""
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
        *kinds, end = ["", *map(str.lower, Path(name).suffixes)]
        if end in PACKED and kinds[-1] in SUFFIXES:
            raise ConfigError(
                f"data.path {path!r} has the compressed file {name}, which would not be read; expected plain "
                "files. Unpack it, or name those that are to be read by a pattern, such as `FOLDER/*.jsonl`."
            )


def _of_file(path: str) -> Format:
    if os.path.isdir(path):
        text = "it is a folder; expected files only: mend the pattern, or move the folder away"
        raise OSError(errno.EISDIR, text, path)
    if os.path.exists(path) and not os.path.isfile(path):
        text = "it is a pipe or a device; write it to a file, which can be read again"
        raise OSError(errno.ESPIPE, text, path)
    with open(path, "rb") as file:
        begin = file.read(64)
    if begin.startswith(b"PAR1"):
        return "parquet"
    kind = SUFFIXES.get(Path(path).suffix.lower(), "lines")
    if kind == "separated" and begin.lstrip().startswith(b"{"):
        return "lines"  # whatever its name says
    return "lines" if kind == "lines" else "parquet" if kind == "parquet" else "separated"
