"""What can be known of a run before anything starts.

Invariants: nothing of the user's is imported or executed, files are only read; an error is what would end the
run, a note is what a person may want to change.
"""

import ast
import difflib
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, Literal

from controller.check_adapter import Shapes, adapter_parameters, adapter_problems
from controller.check_engine import vllm_problems
from controller.config import Config, DataSettings
from controller.config_rules import cross_field_problems
from controller.evaluation_settings import HeldOutSettings
from controller.prompts import no_text
from protocol.algorithms import LOSSES
from protocol.descriptors import limit
from protocol.errors import ConfigError
from protocol.security import Keyring
from strategies.admission import ADMISSIONS
from strategies.filtering import FILTERS
from strategies.migration import MIGRATIONS
from strategies.routing import ROUTINGS
from strategies.synchronization import SYNCHRONIZATIONS

TRAINER_BYTES_PER_PARAMETER = 16  # float32 weights, gradients, and AdamW's two moments
ROWS_READ = 1000  # for what a run would leave out
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one setting."""

    level: Literal["error", "note"]
    field: str
    text: str


Findings = Iterator[Finding]


def check(config: Config) -> list[Finding]:
    """Everything that is wrong with a run, or worth knowing, errors first; nothing is started."""
    found = [Finding("error", fields[0], text) for fields, text in cross_field_problems(config)]
    checks: tuple[Callable[[Config], Findings], ...] = (
        _check_promise, _check_model, _check_engine, _check_data, _check_import_paths,
        _check_run_directory, _check_keys, _check_port, _check_descriptors, _check_work, _check_evaluation,
    )  # fmt: skip
    for one in checks:
        found += one(config)
    return sorted(found, key=lambda finding: finding.level)


def find_import_path(spec: str) -> str | None:
    """What is wrong with an import path, None if nothing; sources are parsed, never run."""
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name.isidentifier():
        return f"{spec!r} is not an import path; expected `module:name` or `file.py:name`."
    if place.endswith(".py"):
        source = Path(place)
        if not source.is_file():
            return f"{spec!r}: there is no file {place} in {Path.cwd()} or beside the configuration."
    else:
        search: list[str] | None = None
        for end, part in enumerate(parts := place.split("."), 1):
            found = PathFinder.find_spec(".".join(parts[:end]) if search is None else part, search)
            if found is None:
                return f"{spec!r}: there is no module {'.'.join(parts[:end])} on the import path."
            search = list(found.submodule_search_locations or [])
        if found.origin is None or not found.origin.endswith(".py"):
            return None  # compiled: only importing could tell more
        source = Path(found.origin)
    return _find_name(source, name, spec)


def _find_name(source: Path, name: str, spec: str) -> str | None:
    try:
        tree = ast.parse(source.read_bytes())
    except SyntaxError as error:
        return f"{spec!r}: {source} is not valid Python: {error.msg} in line {error.lineno}."
    names: set[str] = set()
    for node in ast.walk(tree):  # also below `if` and `try`: better to believe than to refuse wrongly
        match node:
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                names.add(found)
            case ast.Name(id=found, ctx=ast.Store()):
                names.add(found)
            case ast.ImportFrom() | ast.Import():
                names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    if name in names or "*" in names:
        return None
    near = difflib.get_close_matches(name, sorted(names), n=3)
    return f"{spec!r}: {source} defines no {name}." + (f" Did you mean {' or '.join(near)}?" if near else "")


def _check_import_paths(config: Config) -> Findings:
    staleness = config.staleness
    for field, value, known in (
        ("model.factory", config.model.factory, ()),
        ("reward.function", None if config.trainer.is_supervised else config.reward.function, ()),
        ("rollout.engine", config.rollout.engine, ("torch", "vllm")),
        ("trainer.loss", config.trainer.loss, LOSSES),
        ("staleness.routing", staleness.routing, tuple(ROUTINGS)),
        ("staleness.synchronization", staleness.synchronization, tuple(SYNCHRONIZATIONS)),
        ("staleness.migration", staleness.migration, tuple(MIGRATIONS)),
        ("staleness.admission", staleness.admission, tuple(ADMISSIONS)),
        ("staleness.filter", staleness.filter, tuple(FILTERS)),
        ("evaluation.reward_function", config.evaluation.reward_function or None, ()),
    ):
        if value is None or value in known:
            continue
        if not value:
            yield Finding(
                "error", field, "is empty; expected the import path of a function that scores responses."
            )
        elif problem := find_import_path(value):
            yield Finding("error", field, problem + (f" Built in: {', '.join(known)}." if known else ""))


def _check_promise(config: Config) -> Findings:
    staleness = config.staleness
    if staleness.ledger in ("arrival", "completion"):
        yield Finding(
            "note", "staleness.ledger",
            f"`{staleness.ledger}` (strategy `{staleness.strategy}`) does not promise max_staleness "
            f"{staleness.max_staleness}: older trajectories are trained, and counted (staleness/violations).",
        )  # fmt: skip
    elif staleness.ledger == "floor" or staleness.spare_groups:
        yield Finding(
            "note", "staleness.ledger" if staleness.ledger == "floor" else "staleness.spare_groups",
            "groups that come too late for the bound are dropped, which favours short responses.",
        )  # fmt: skip


def _model_directory(config: Config) -> Path:
    base = Path(config.run.dir) / config.run.name if config.model.factory else Path.cwd()
    return base / config.model.path


def _check_engine(config: Config) -> Findings:
    if config.rollout.engine != "vllm":
        return
    file = _model_directory(config) / "config.json"
    try:
        shape = json.loads(file.read_text()) if file.is_file() else {}
    except (OSError, ValueError):
        return  # _check_model says it
    for field, text in vllm_problems(config.rollout, shape):
        yield Finding("error", field, text)


def _check_model(config: Config) -> Findings:
    directory = _model_directory(config)
    if not (directory / "config.json").is_file():
        if config.model.factory is None:
            yield Finding(
                "error", "model.path",
                f"there is no model at {directory}: no config.json. Download one (`hf download NAME "
                "--local-dir DIR`) and name its folder, or set model.factory.",
            )  # fmt: skip
        yield from _adapter_findings(config, {}, {})
        return
    try:
        shape = json.loads((directory / "config.json").read_text())
        weights = {
            name: shape for file in directory.glob("*.safetensors") for name, shape in _shapes(file).items()
        }
    except (OSError, ValueError) as error:
        yield Finding(
            "error", "model.path", f"{directory} cannot be read: {error}. Save or download the model again."
        )
        return
    yield from _adapter_findings(config, shape, weights)
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    context = shape.get("max_position_embeddings")
    if context is not None and longest > context:
        yield Finding(
            "error", "rollout.max_response_tokens",
            f"{rollout.max_prompt_tokens} prompt and {rollout.max_response_tokens} response tokens are "
            f"{longest}, but the model has {context} positions; lower either.",
        )  # fmt: skip
    if weights:
        yield _memory_finding(config, shape, weights, longest)


def _adapter_findings(config: Config, shape: dict[str, Any], weights: Shapes) -> Findings:
    for field, text in adapter_problems(config, shape, weights):
        yield Finding("error", field, text)


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Those of all tensors in a safetensors file, from its header."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    return {name: tuple(tensor["shape"]) for name, tensor in header.items()}


def _memory_finding(config: Config, shape: dict[str, Any], weights: Shapes, longest: int) -> Finding:
    parameters = sum(map(prod, weights.values()))
    heads = shape.get("num_key_value_heads") or shape.get("num_attention_heads", 0)
    head_dim = shape.get("head_dim") or shape.get("hidden_size", 0) // max(
        shape.get("num_attention_heads", 1), 1
    )
    width = BYTES[config.model.dtype]
    kv = (
        2
        * shape.get("num_hidden_layers", 0)
        * heads
        * head_dim
        * width
        * longest
        * config.rollout.max_running
    )
    instance, trainer = parameters * width + kv, parameters * TRAINER_BYTES_PER_PARAMETER
    if config.trainer.lora.rank:
        trained = adapter_parameters(config, weights)
        trainer = parameters * width + trained * TRAINER_BYTES_PER_PARAMETER
        instance += parameters * width * (config.rollout.engine == "torch")  # what an adapter is merged into
    elif config.trainer.kl_coefficient > 0:
        trainer += parameters * BYTES["float32"]  # the reference model
    if config.trainer.baseline == "value":
        trainer += parameters * TRAINER_BYTES_PER_PARAMETER
    total = config.rollout.instances * instance + trainer
    text = (
        f"about {_in_words(total)} for weights, optimizer and KV cache: {config.rollout.instances} "
        f"instances of {_in_words(parameters * width)} weights and up to {_in_words(kv)} KV cache, trainer "
        f"{_in_words(trainer)}."
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    has_gpu = Path("/dev/nvidia0").exists()
    on_cpu = all(
        device == "cpu" or (device == "auto" and not has_gpu)
        for device in (config.rollout.device, config.trainer.device)
    )
    if on_cpu and total > memory:
        return Finding(
            "error",
            "rollout.max_running",
            f"{text} This machine has {_in_words(memory)}; lower rollout.max_running or instances, or take "
            "a smaller model.",
        )
    return Finding("note", "rollout.max_running", text)


def _in_words(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.1f} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.1f} MB"


def _check_data(config: Config) -> Findings:
    yield from _check_source(config.data, "data", is_supervised=config.trainer.is_supervised)


def _check_source(data: DataSettings, section: str, *, is_supervised: bool = False) -> Findings:
    path = Path(data.path)
    if not data.path:
        yield Finding(
            "error",
            f"{section}.path",
            "is empty; expected a JSONL file, a saved dataset, or an import path of `prompts`.",
        )
    elif path.is_dir():
        if PathFinder.find_spec("datasets") is None:
            yield Finding(
                "error",
                f"{section}.path",
                f"{path} is a folder, which the package `datasets` reads; install it: pip install datasets.",
            )
    elif path.is_file():
        yield from _check_first_row(data, path, section, is_supervised=is_supervised)
        yield from _check_text(path, section)
    elif ":" not in data.path:
        yield Finding(
            "error",
            f"{section}.path",
            f"there is no file or folder {data.path} in {Path.cwd()} or beside the configuration.",
        )
    elif problem := find_import_path(data.path):
        yield Finding("error", f"{section}.path", problem)


def _check_first_row(data: DataSettings, path: Path, section: str, *, is_supervised: bool) -> Findings:
    with path.open("rb") as lines:
        first = next((line for line in islice(lines, 100) if line.strip()), b"")
    if not first:
        yield Finding("error", f"{section}.path", f"{path} has no rows; expected one JSON object per line.")
        return
    try:
        row = json.loads(first)
    except ValueError as error:
        yield Finding(
            "error",
            f"{section}.path",
            f"the first row of {path} is not JSON ({error}); expected one object per line.",
        )
        return
    if not isinstance(row, dict):
        yield Finding(
            "error",
            f"{section}.path",
            f"the first row of {path} is a {type(row).__name__}; expected a JSON object.",
        )
        return
    needed = {"prompt": "prompt", **data.columns}
    if is_supervised:
        needed = {"response": "response", **needed}
        if needed.get("messages", "messages") in row:  # a conversation is prompt and response in one
            needed = data.columns
    for name, source in needed.items():
        if source not in row:
            yield Finding(
                "error", f"{section}.columns.{name}",
                f"the first row of {path} has no column {source!r}; it has {', '.join(map(repr, row))}. Map "
                f"it: `{section}.columns: {{{name}: THE_COLUMN}}`.",
            )  # fmt: skip


def _check_text(path: Path, section: str) -> Findings:
    """Rows that a run would leave out, among the first."""
    with path.open("rb") as lines:
        for number, line in enumerate(islice(lines, ROWS_READ), 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a run says it, and ends
            if isinstance(row, dict) and (problem := no_text(row)):
                yield Finding(
                    "note", f"{section}.path", f"{path}, line {number} {problem} It will be left out."
                )
                return


def _check_run_directory(config: Config) -> Findings:
    directory = (Path(config.run.dir) / config.run.name).absolute()
    nearest = next(place for place in (directory, *directory.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            "error",
            "run.dir",
            f"{directory} cannot be written: {nearest} is not a folder that you may write to.",
        )


def _check_keys(config: Config) -> Findings:
    if config.controller.keys:
        try:
            Keyring(config.controller.keys)
        except ConfigError as error:
            yield Finding("error", "controller.keys", str(error))


def _check_port(config: Config) -> Findings:
    host, _, port = config.controller.bind.removeprefix("tcp://").rpartition(":")
    if not config.controller.bind.startswith("tcp://") or not port.isdigit():
        return
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == "*" else host.strip("[]"), int(port)))
        except OSError as error:
            yield Finding(
                "error",
                "controller.bind",
                f"{config.controller.bind} cannot be bound: {error.strerror}. Choose another port, or "
                "`auto`.",
            )


def _check_descriptors(config: Config) -> Findings:
    found = limit()
    local = config.rollout.instances + config.reward.workers
    yield Finding("error" if local > found.workers else "note", "controller.bind", found.in_words())


def _check_work(config: Config) -> Findings:
    rollout, trainer, staleness = config.rollout, config.trainer, config.staleness
    if trainer.is_supervised:
        yield Finding(
            "note", "trainer.algorithm",
            "`sft` trains on the responses of the data: no rollout worker is started, and the sections "
            "`staleness` and `reward.function` have no effect.",
        )  # fmt: skip
        return
    if rollout.sampling.temperature == 0:
        yield Finding(
            "note",
            "rollout.sampling.temperature",
            "0 makes all responses to a prompt equal, so nothing can be learnt from comparing them.",
        )
    if rollout.instances == 0:
        yield Finding(
            "note", "rollout.instances", "0: the run waits until rollout workers attach from outside."
        )
    if staleness.max_staleness == 0:
        yield Finding(
            "note",
            "staleness.max_staleness",
            "0 is synchronous: rollout and training take turns. 1 to 3 lets them overlap.",
        )
    processes = rollout.instances * rollout.threads + trainer.ranks * trainer.threads
    if processes > (cores := os.cpu_count() or 1):
        yield Finding(
            "note",
            "rollout.instances",
            f"instances and trainer use {processes} threads on {cores} cores; on CPUs they share them.",
        )
    in_flight = staleness.in_flight_batches
    batches = staleness.max_staleness + 1 if isinstance(in_flight, str) else in_flight
    trajectories = int(batches * trainer.batch_groups) * rollout.group_size
    yield Finding(
        "note", "staleness.in_flight_batches",
        f"up to {trajectories} trajectories are in the system at once, and instances decode up to "
        f"{rollout.instances * rollout.max_running}.",
    )  # fmt: skip


def _check_evaluation(config: Config) -> Findings:
    evaluation = config.evaluation
    if not evaluation.every_steps:
        if evaluation.data:
            yield Finding("note", "evaluation.every_steps", "is 0, so nothing is evaluated.")
        return
    counts: list[int | None] = []
    for name, one in evaluation.data.items():
        yield from _check_source(DataSettings(path=one.path, columns=one.columns), f"evaluation.data.{name}")
        counts.append(_prompt_count(one))
    every, steps = evaluation.every_steps, config.run.steps
    versions = {*range(every, steps + 1, every), *[0] * evaluation.at_start, *[steps] * evaluation.at_end}
    known, each = sum(count or 0 for count in counts), evaluation.samples
    words = f"{'at least ' * (None in counts)}{known} held-out prompts x {each} samples = {known * each}"
    training = steps * config.trainer.batch_groups * config.rollout.group_size
    share = len(versions) * known * each / training
    yield Finding(
        "note", "evaluation.every_steps",
        f"{words} responses each time, {len(versions)} times; all together {share:.1%} of the {training} "
        "responses that are trained.",
    )  # fmt: skip


def _prompt_count(one: HeldOutSettings) -> int | None:
    """Prompts of a held-out set, as far as it can be told without running anything."""
    path = Path(one.path)
    if not path.is_file():
        return one.max_prompts or None
    with path.open("rb") as lines:
        count = sum(not line.isspace() for line in lines)
    return min(count, one.max_prompts or count)
