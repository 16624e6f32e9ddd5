"""Checks the data before a run starts, and reads its first rows for other checks.

Invariants: files are only read, and no further than their first rows, except to compare `data.epochs` with
`run.steps`, or to find a usable row if the first ones have none; the user's code is not imported.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from controller.check.source import Definition, call_problem, find_module, look_up
from controller.config.data import DataSettings, RowSettings, template_columns
from controller.config.evaluation import HeldOutSettings
from controller.config.models import Config
from controller.config.pluggable import CALLED
from controller.config.yaml_file import WORDS
from controller.data.formats import EXPECTED, SAVED, Format, format_of, open_table
from controller.data.held_out import source_of
from controller.data.prompts import PromptSource
from controller.data.rows import inside
from controller.data.saved import splits_of
from controller.data.tables import Found
from protocol.errors import ConfigError
from protocol.files import is_dir, is_file

FIRST_ROWS = 256  # rows that are read of each source
OF_A_RUN = "a run that goes on needs the data that it began with"
BEGINNINGS = {
    b"ARROW1": ("Arrow", "datasets.Dataset.from_file({path!r}).to_json({to!r})"),
    b"\x1f\x8b": ("compressed by gzip", ""),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", ""),
    b"BZh": ("compressed by bzip2", ""),
    b"\xfd7zXZ": ("compressed by xz", ""),
    b"PK\x03\x04": ("a zip archive", ""),
}
PACKAGES = {
    "parquet": "pyarrow", "saved": "datasets", "hub": "datasets", "procedural": "reasoning_gym",
    "taskset": "verifiers",
}  # fmt: skip
NOT_COUNTED = ("function", "taskset", "hub", "nothing")
NAMES = {"pyarrow": "Parquet", "reasoning_gym": "a set of reasoning-gym", "verifiers": "a taskset"}
Level = Literal["error", "note"]
Remark = tuple[Level, str, str]  # key, text


@dataclass(slots=True)
class Sample:
    """Remarks on one source of prompts, and its first rows."""

    section: str  # data, data.sources.N, or evaluation.data.NAME
    path: str
    columns: dict[str, str]
    name: str = ""  # of one of several sources: the column `source` of its rows
    remarks: list[Remark] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # the first rows, as workers get them

    @property
    def is_trained(self) -> bool:
        """Whether the source is for training, and not held out."""
        return self.section.partition(".")[0] == "data"


def samples(config: Config, *, is_thorough: bool = False) -> list[Sample]:
    """A sample of every source of prompts that the run reads.

    `is_thorough`: also open saved datasets and those of the Hub, which takes seconds.
    """
    names = [source.name for source in config.data.sources] or [""]
    found = [
        _look_at(config, section, data, name=name, is_thorough=is_thorough)
        for name, (section, data) in zip(names, config.data.each, strict=True)
    ]
    for sample, (section, data) in zip(found, config.data.each, strict=True):
        sample.remarks += _key_notes(section, data)
    evaluation = config.evaluation
    for name, one in evaluation.data.items() if evaluation.every_steps else ():
        rows = {key: getattr(one, key) for key in RowSettings.model_fields}
        data = DataSettings().model_copy(update=rows)
        most = min(one.max_prompts or FIRST_ROWS, FIRST_ROWS)  # rows behind these are not used
        sample = _look_at(config, f"evaluation.data.{name}", data, most=most, is_thorough=is_thorough)
        sample.remarks += [*_key_notes(sample.section, data), *_source_problems(name, one, sample.rows)]
        found.append(sample)
    return found


def _key_notes(section: str, data: DataSettings) -> Iterator[Remark]:
    """Notes on keys that have no effect on a source of this kind, or another one than they seem to."""
    kind = kind_of(data.path)
    if data.subset and kind not in ("hub", "nothing"):
        text = f"is {data.subset!r}, which has no effect: {data.path} is no name of the Hugging Face Hub."
        yield "note", f"{section}.subset", text
    if data.split and kind in ("function", "procedural", "taskset"):
        yield (
            "note",
            f"{section}.split",
            f"is {data.split!r}, which has no effect: {data.path} has no splits.",
        )
    for name, some in data.where.items() if kind == "separated" else ():
        if odd := [value for value in some if not isinstance(value, str)]:
            value = json.dumps(odd[0])
            such = json.dumps("" if odd[0] is None else str(odd[0]))  # of true True, as Python writes it
            text = (
                f"has {value}, which keeps no row: all values of CSV and TSV are text. Write it as the file "
                f"has it, such as {such}."
            )
            yield "note", f"{section}.where.{name}", text
    for name, value in data.chat_template_kwargs.items():
        if isinstance(value, str) and value.lower() in WORDS:
            boolean = str(WORDS[value.lower()]).lower()
            text = (
                f"is the text {value!r}, and no boolean: a template may take it for true. "
                f"For a boolean write {boolean}."
            )
            yield "note", f"{section}.chat_template_kwargs.{name}", text


def _source_problems(name: str, one: HeldOutSettings, rows: Sequence[Mapping[str, Any]]) -> Iterator[Remark]:
    try:
        for number, row in enumerate(rows):
            source_of(name, one, number, row)
    except ConfigError as error:
        yield "error", f"evaluation.data.{name}.source_column", str(error)


def epoch_remarks(config: Config, samples: Sequence[Sample]) -> Iterator[Remark]:
    """Remarks on the number of steps that the data lasts for, if it is not `run.steps`; counts all rows.

    None if passes are not limited, a source cannot be counted, or a source has an error.
    """
    data, batch, steps = config.data, config.trainer.batch_groups, config.run.steps
    if not data.epochs or any(level == "error" for sample in samples for level, *_ in sample.remarks):
        return
    rows = 0
    for section, source in data.each:
        if format_of(source.path)[0] in NOT_COUNTED:
            return
        try:
            rows += len(open_table(source))
        except ConfigError as error:  # in a line behind the first rows
            yield "error", f"{section}.path", str(error)
            return
    most = rows * data.epochs // batch
    if most == steps:
        return
    product = f"{rows:,} rows x {data.epochs:,} epoch{'s' * (data.epochs > 1)} / {batch:,} groups a step"
    if not most:
        yield "error", "data.epochs", f"{product} is less than one step, and nothing would be trained."
    else:
        text = f"{product} = {most:,} steps at most, and run.steps is {steps:,}"
        yield "note", "run.steps", f"{text}: whichever comes first ends the run."


def kind_of(path: str) -> Format:
    """The format of a path; "nothing" if it cannot be read."""
    try:
        return format_of(path)[0] if path else "nothing"
    except OSError:
        return "nothing"


def package_for(path: str) -> str | None:
    """The optional package that reads a path; None if none is needed."""
    kind = kind_of(path)
    if kind == "saved" and not any(is_file(Path(path) / name) for name in SAVED):
        return None
    return PACKAGES.get(kind)


def _look_at(
    config: Config,
    section: str,
    data: DataSettings,
    *,
    is_thorough: bool,
    name: str = "",
    most: int = FIRST_ROWS,
) -> Sample:
    sample = Sample(section, data.path, data.columns, name)
    is_supervised = config.trainer.is_supervised and sample.is_trained
    try:
        kind, files = format_of(data.path) if data.path else ("nothing", [])
    except OSError as error:  # a pipe, or no permission
        text = f"{data.path} cannot be read: {error.strerror}."
        sample.remarks.append(("error", f"{section}.path", text))
        return sample
    if problem := _path_problem(data.path, kind, files, split=data.split):
        sample.remarks.append(("error", f"{section}.path", problem))
    elif problem := _missing_package(data.path):
        sample.remarks.append(("error", "data.path", problem))  # the key that needs.py knows
    elif kind == "hub" and not is_thorough:
        sample.remarks.append(("note", f"{section}.path", _at_the_hub(data)))
    is_near = bool(files) or kind == "procedural"
    if sample.remarks or kind in ("function", "taskset") or (not is_near and not is_thorough):
        return sample
    try:
        table = open_table(data, FIRST_ROWS)
        first = next(table.walk(0, None), None)
        expected = ["response"] if is_supervised else [] if config.agent.is_on else ["prompt"]
        sample.remarks += _first_row_problems(data, first, section, expected=expected)
        if not sample.remarks:
            _read_first_rows(config, data, sample, most=most, is_supervised=is_supervised)
    except ConfigError as error:
        sample.remarks.append(("error", f"{section}.path", str(error)))
    return sample


def _read_first_rows(
    config: Config, data: DataSettings, sample: Sample, *, most: int, is_supervised: bool
) -> None:
    """Read the first rows into the sample; rows for training that a run leaves out become notes.

    If none of the first rows is usable, or none passes `where`, all rows are read in the order of the run
    until there are enough. Raises: ConfigError that names a row.
    """
    trainer = config.trainer if is_supervised else config.trainer.model_copy(update={"algorithm": "grpo"})

    def note(text: str) -> None:
        sample.remarks.append(("note", f"{sample.section}.path", text))

    for indexed, shuffle in (FIRST_ROWS, False), (None, data.shuffle and sample.is_trained):
        sample.remarks.clear()
        once = data.model_copy(update={"shuffle": shuffle, "epochs": 1})
        source = PromptSource(
            config.model_copy(update={"data": once, "trainer": trainer}),
            name=sample.name,
            most=indexed,
            on_refused=note if sample.is_trained else None,
        )
        while len(sample.rows) < most and (row := source.read(1)):
            sample.rows.append(json.loads(row[0]))
        if sample.rows:
            return
    text = f"no row of {data.path} can be used, for the reasons in the notes; expected at least one."
    sample.remarks.append(("error", f"{sample.section}.path", text))


def _missing_package(path: str) -> str | None:
    is_empty = bool(path) and is_dir(Path(path)) and not any(Path(path).iterdir())
    package = package_for(path) or ("datasets" if is_empty else None)
    if package is None or find_module(package) is not None:
        return None
    kind = NAMES.get(package)
    kind = kind or ("a folder" if is_dir(Path(path)) else "on the Hub")
    reads = f"which the package `{package}` reads, and it is not installed"
    return f"{path} is {kind}, {reads}: pip install {package}."


def _path_problem(name: str, kind: Format, files: list[str], *, split: str) -> str | None:
    """Why a path cannot be read; None if it can."""
    if not name:
        return f"is empty; expected {EXPECTED}."
    if kind == "saved":
        return _folder_problem(Path(name), split)
    if kind == "function":
        return _function_problem(name)
    if kind == "nothing":
        where = f"in {Path.cwd()} or beside the configuration"
        return f"there is no file or folder {name} {where}. Mind its name; {OF_A_RUN}."
    return next(filter(None, map(_format_problem, map(Path, files))), None) if kind == "lines" else None


def _at_the_hub(data: DataSettings) -> str:
    arguments = ", ".join(map(repr, filter(None, [data.path, data.subset])))
    code = f"import datasets; datasets.load_dataset({arguments}, split={data.split or 'train'!r})"
    folder = data.path.rpartition("/")[2]
    return (
        f"there is no file or folder {data.path} in {Path.cwd()} or beside the configuration, so it is "
        "looked up on the Hugging Face Hub when the run starts. Where there is no network, save it once, "
        f'python -c "{code}.save_to_disk({folder!r})", and name that folder.'
    )


def _folder_problem(path: Path, split: str = "") -> str | None:
    parts = path / "dataset_dict.json"
    if is_file(parts):
        try:
            splits = splits_of(str(path))
        except ConfigError as error:
            return str(error)
        if split in splits:
            return None
        return (
            f"{path} holds the splits {', '.join(splits)}; name one of them: {path}/{splits[0]}, or by split."
        )
    inside = sorted(inner.name for inner in path.iterdir())
    if inside and not is_file(path / "dataset_info.json"):
        return (
            f"{path} is a folder that datasets.save_to_disk did not write (no dataset_info.json); it holds "
            f"{', '.join(inside[:5])}. Expected such a folder, or one of JSONL, Parquet or CSV files."
        )
    return None


def _format_problem(path: Path) -> str | None:
    """What is wrong with a file of a common format that is not read; None if it is none."""
    try:
        with path.open("rb") as file:
            begin = file.read(4096)
    except OSError:  # `open_table` says what is wrong
        return None
    to = f"{path.with_suffix('')}.jsonl"
    name, code = next((kind for magic, kind in BEGINNINGS.items() if begin.startswith(magic)), ("", ""))
    if name:
        how = "Unpack it first."
        if code:
            code = f"import datasets; {code.format(path=str(path), to=to)}"
            how = f'Convert it: python -c "{code}" (pip install datasets), and name the result.'
        return f"{path} is {name}, which is not read; expected JSONL, one object per line. {how}"
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
            return f"{found.place} {problem}; it is called as {words}, again for each pass over the data."
        if not found.has_result:
            return f"{found.place} has no `return` with a value and no `yield`; expected an iterable of rows."
    return found if isinstance(found, str) else None


def _first_row_problems(
    data: DataSettings, first: Found | None, section: str, *, expected: list[str]
) -> Iterator[Remark]:
    if first is None:
        text = f"{data.path} has no rows; expected at least one. Name another source; {OF_A_RUN}."
        yield "error", f"{section}.path", text
        return
    row = first[1]
    if not isinstance(row, dict):
        text = f"the first row of {data.path} is a {type(row).__name__}; expected a JSON object."
        yield "error", f"{section}.path", text
        return
    names = template_columns(data.prompt) if data.prompt else ["prompt"] if expected else []
    needed = {**{name: name for name in [*names, *data.where]}, **data.columns}
    mapped = {name: found[0] for name, column in data.columns.items() if (found := inside(row, column))}
    if "response" in expected:
        needed = {"response": "response", **needed}
        if inside(row | mapped, "messages"):  # a conversation is prompt and response in one
            needed = data.columns
    for name, column in needed.items():
        if not inside(row if name in data.columns else row | mapped, column):
            template = f" It is a column of the template `{section}.prompt`." * (
                name in names and bool(data.prompt)
            )
            yield (
                "error", f"{section}.columns.{name}",
                f"the first row of {data.path} has no column {column!r}; it has "
                f"{', '.join(map(repr, row))}. Map it: `{section}.columns: "
                f"{{{name}: THE_COLUMN}}`.{template}",
            )  # fmt: skip
