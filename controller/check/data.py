"""What can be known of the data before anything starts, and its first rows, for other checks to look at.

Invariants: files are only read, and no further than their first rows; nothing of the user's is imported.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from controller.check.source import Definition, call_problem, look_up
from controller.config.models import Config, DataSettings
from controller.config.pluggable import CALLED
from controller.data.prompts import PromptSource
from protocol.errors import ConfigError

FIRST_ROWS = 256  # as many that are refused in a row end a run
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FROM_DATASETS = (
    'python -c "import datasets; datasets.Dataset.{reader}({path!r}).to_json({to!r})" '
    "(pip install datasets), and name the result"
)
BEGINNINGS = {
    b"PAR1": ("Parquet", "from_parquet"),
    b"ARROW1": ("Arrow", "from_file"),
    b"\x1f\x8b": ("compressed by gzip", ""),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", ""),
}

Level = Literal["error", "note"]
Remark = tuple[Level, str, str]  # key, text


@dataclass(slots=True)
class Sample:
    """What was found of one source of prompts."""

    section: str  # data, or evaluation.data.NAME
    path: str
    columns: dict[str, str]
    remarks: list[Remark] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # the first, as workers get them


def samples(config: Config, *, is_thorough: bool = False) -> list[Sample]:
    """Every source of prompts that the run reads. `is_thorough`: also open saved datasets, which takes
    seconds."""
    evaluation = config.evaluation
    sources = [("data", config.data)]
    for name, one in evaluation.data.items() if evaluation.every_steps else ():
        sources.append((f"evaluation.data.{name}", DataSettings(path=one.path, columns=one.columns)))
    return [_look_at(config, section, data, is_thorough=is_thorough) for section, data in sources]


def _look_at(config: Config, section: str, data: DataSettings, *, is_thorough: bool) -> Sample:
    is_supervised = config.trainer.is_supervised and section == "data"
    sample = Sample(section, data.path, data.columns)
    path = Path(data.path)
    problem = _path_problem(data.path)
    if problem is not None:
        sample.remarks.append(("error", f"{section}.path", problem))
    elif path.is_file():
        sample.remarks += _first_row_problems(data, path, section, is_supervised=is_supervised)
    if sample.remarks or not (path.is_file() or (path.is_dir() and is_thorough)):
        return sample
    trainer = config.trainer if is_supervised else config.trainer.model_copy(update={"algorithm": "grpo"})
    data = data.model_copy(update={"shuffle": False, "epochs": 1})
    try:
        source = PromptSource(
            config.model_copy(update={"data": data, "trainer": trainer}),
            most=FIRST_ROWS,
            on_refused=lambda text: sample.remarks.append(("note", f"{section}.path", text)),
        )
        while len(sample.rows) < FIRST_ROWS and (row := source.read(1)):
            sample.rows.append(json.loads(row[0]))
    except ConfigError as error:
        sample.remarks.append(("error", f"{section}.path", str(error)))
    return sample


def _path_problem(name: str) -> str | None:
    """Why nothing can be read there."""
    path = Path(name)
    if not name:
        return "is empty; expected a JSONL file, a saved dataset, or an import path of `prompts`."
    if path.is_dir():
        return _folder_problem(path)
    if path.is_file():
        return _format_problem(path)
    if ":" in name:
        return _function_problem(name)
    where = f"there is no file or folder {name} in {Path.cwd()} or beside the configuration."
    if not HUB_NAME.fullmatch(name) or path.suffix:
        return where
    code = f"import datasets; datasets.load_dataset({name!r}, split='train')"
    folder = name.rpartition("/")[2]
    return (
        f"{where} Names of the Hugging Face Hub are not looked up: save the data set once, "
        f'python -c "{code}.save_to_disk({folder!r})", and name that folder.'
    )


def _folder_problem(path: Path) -> str | None:
    parts = path / "dataset_dict.json"
    if parts.is_file():
        try:
            splits = [str(split) for split in json.loads(parts.read_text())["splits"]]
        except (OSError, ValueError, KeyError, TypeError):
            splits = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
        return f"{path} holds the splits {', '.join(splits)}; name one of them: {path}/{splits[0]}."
    inside = sorted(inner.name for inner in path.iterdir())
    if inside and not (path / "dataset_info.json").is_file():
        return (
            f"{path} is a folder that datasets.save_to_disk did not write (no dataset_info.json); it holds "
            f"{', '.join(inside[:5])}. Expected such a folder, or a JSONL file."
        )
    if PathFinder.find_spec("datasets") is None:
        return f"{path} is a folder, which the package `datasets` reads; install it: pip install datasets."
    return None


def _format_problem(path: Path) -> str | None:
    """What the file is, if it is one of those that people have and that are not read."""
    with path.open("rb") as file:
        begin = file.read(4096)
    to = f"{path.with_suffix('')}.jsonl"
    name, reader = next((kind for magic, kind in BEGINNINGS.items() if begin.startswith(magic)), ("", ""))
    if not name and path.suffix in (".csv", ".tsv") and not begin.lstrip().startswith(b"{"):
        name, reader = path.suffix[1:].upper(), "from_csv"
    if reader:
        how = FROM_DATASETS.format(reader=reader, path=str(path), to=to)
        return f"{path} is {name}, which is not read; expected JSONL, one object per line. Convert it: {how}."
    if name:
        return f"{path} is {name}, which is not read; expected JSONL, one object per line. Unpack it first."
    text = b"".join(begin.split())
    if text.startswith(b"[{"):
        code = f"import json; [print(json.dumps(row)) for row in json.load(open({str(path)!r}))]"
        to = to if to != str(path) else f"{path.with_suffix('')}_rows.jsonl"
        how = f'python -c "{code}" > {to}'
        return f"{path} is one JSON array; expected JSONL, one object per line. Convert it: {how}"
    if begin.split(b"\n", 1)[0].strip() == b"{":
        return f"{path} has an object over several lines; expected JSONL, one object per line."
    return None


def _function_problem(name: str) -> str | None:
    found = look_up(name)
    if isinstance(found, Definition) and found.parameters is not None:
        words, positional, by_name = CALLED["data.path"]
        if problem := call_problem(found.parameters, positional=positional, by_name=by_name):
            return f"{found.place} {problem}; it is called as {words}, anew for each pass over the data."
        if not found.has_result:
            return f"{found.place} has no `return` with a value and no `yield`; expected an iterable of rows."
    return found if isinstance(found, str) else None


def _first_row_problems(
    data: DataSettings, path: Path, section: str, *, is_supervised: bool
) -> Iterator[Remark]:
    with path.open("rb") as lines:
        first = next((line for line in islice(lines, 100) if line.strip()), b"")
    if not first:
        yield "error", f"{section}.path", f"{path} has no rows; expected one JSON object per line."
        return
    try:
        row = json.loads(first.decode("utf-8-sig"))
    except ValueError as error:
        text = f"the first row of {path} is not JSON ({error}); expected one object per line."
        yield "error", f"{section}.path", text
        return
    if not isinstance(row, dict):
        text = f"the first row of {path} is a {type(row).__name__}; expected a JSON object."
        yield "error", f"{section}.path", text
        return
    needed = {"prompt": "prompt", **data.columns}
    if is_supervised:
        needed = {"response": "response", **needed}
        if needed.get("messages", "messages") in row:  # a conversation is prompt and response in one
            needed = data.columns
    for name, source in needed.items():
        if source not in row:
            yield (
                "error", f"{section}.columns.{name}",
                f"the first row of {path} has no column {source!r}; it has {', '.join(map(repr, row))}. Map "
                f"it: `{section}.columns: {{{name}: THE_COLUMN}}`.",
            )  # fmt: skip
