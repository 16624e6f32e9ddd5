"""Checks a run before it starts: all errors and notes of `launch.py check`.

Invariants: the user's code is not imported in this process, and files are only read; strategies, a loss and
an agent are tried in another process, a reward only if asked for; an error would end the run, a note is
something to consider.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Literal

from controller.check.chat_template import template_remarks
from controller.check.data import Remark, epoch_remarks, kind_of, samples
from controller.check.lora import Shapes, adapter_problems
from controller.check.memory import device_findings, memory_findings
from controller.check.model import model_findings
from controller.check.plugins import no_program, plugin_remarks, tracker_remarks
from controller.check.prompts import prompt_remarks
from controller.check.reward import reward_remarks
from controller.check.sandbox import sandbox_remarks
from controller.check.vllm import build_problem
from controller.config.evaluation import HeldOutSettings
from controller.config.models import Config
from controller.config.places import run_folder
from controller.config.rules import cross_field_problems
from controller.data.formats import HUB_NAME, format_of, open_table
from protocol.engines import ENGINES
from protocol.errors import ConfigError
from protocol.files import exists, is_dir, is_file
from protocol.importing import hides_python, load_object
from protocol.model_files import TOKENIZERS, missing_shards, tensor_shapes
from protocol.model_shape import Shape, checked
from protocol.plain_text import is_plain_line
from protocol.wire.descriptors import limit
from protocol.wire.endpoints import check_unix_path
from protocol.wire.security import Keyring

MAX_NAME = 249  # bytes: a file system takes 255, and the lock beside the run is `.NAME.lock`
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a note about one setting."""

    level: Literal["error", "note"]
    field: str
    text: str


Findings = Iterator[Finding]


def check(config: Config, *, is_thorough: bool = False, calls_reward: bool = False) -> list[Finding]:
    """All errors and notes of a run, errors first; no part of the run is started.

    `is_thorough`: also load a tokenizer, a saved dataset, a loss or an agent, which takes seconds.
    `calls_reward`: call each reward once on the first row and made-up responses.
    """
    found = [Finding("error", fields[0], text) for fields, text in cross_field_problems(config)]
    checks: tuple[Callable[[Config], Findings], ...] = (
        _check_promise, _check_model, _check_engine, _check_run_directory, _check_keys, _check_port,
        _check_descriptors, _check_modules, _check_work, _check_sampler, _check_evaluation, _check_devices,
        _check_trackers,
    )  # fmt: skip
    for one in checks:
        found += one(config)
    remarks: list[Remark] = [*plugin_remarks(config, is_thorough=is_thorough)]
    sources = samples(config, is_thorough=is_thorough)
    for sample in sources:
        remarks += sample.remarks
    remarks += epoch_remarks(config, sources) if is_thorough else ()
    remarks += prompt_remarks(config, sources, _model_directory(config), is_thorough=is_thorough)
    remarks += reward_remarks(config, sources, calls=calls_reward, is_thorough=is_thorough)
    remarks += sandbox_remarks(config) if is_thorough else ()
    remarks += template_remarks(config, _model_directory(config)) if is_thorough else ()
    found += [Finding(level, field, text) for level, field, text in remarks]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level)  # a model's, once for all sources


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
    base = run_folder(config) if config.model.factory else Path.cwd()
    return base / config.model.path


def _check_engine(config: Config) -> Findings:
    if (config.rollout.instances or config.trainer.local) and (problem := build_problem()):
        yield Finding("error", "rollout.engine", problem)
    engine = ENGINES.get(config.rollout.engine)
    if engine is None or not engine.check:
        return
    file = _model_directory(config) / "config.json"
    try:
        shape = checked(json.loads(file.read_text())) if is_file(file) else {}
    except (OSError, ValueError):
        return  # _check_model says it
    for field, text in load_object(engine.check)(config.rollout, shape):
        yield Finding("error", field, text)


def _check_model(config: Config) -> Findings:
    directory = _model_directory(config)
    if not is_file(directory / "config.json"):
        if config.model.factory is None:
            yield Finding(
                "error", "model.path",
                f"there is no model at {directory}: no config.json. Download one (`{_download(config)}`) and "
                "name its folder, or set model.factory.",
            )  # fmt: skip
        yield from _architecture_findings(config, {}, {})
        return
    try:
        shape = checked(json.loads((directory / "config.json").read_text()))
        weights = {
            name: shape
            for file in directory.glob("*.safetensors")
            for name, shape in tensor_shapes(file).items()
        }
    except (OSError, ValueError) as error:
        yield Finding(
            "error", "model.path", f"{directory} cannot be read: {error}. Save or download the model again."
        )
        return
    yield from _architecture_findings(config, shape, weights)
    if config.model.factory is None:
        yield from _missing_files(directory)
    yield from _length_findings(config, shape)
    if weights:
        for level, field, text in memory_findings(config, shape, weights):
            yield Finding(level, field, text)


def _length_findings(config: Config, shape: Shape) -> Findings:
    """Lengths beyond the model's positions.

    A model that the run makes itself is not known when it first starts, so the run may be under way with
    short prompts: the same command must be able to go on with it.
    """
    rollout, context = config.rollout, shape.get("max_position_embeddings")
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    if context is None or longest <= context:
        return
    text = (
        f"{rollout.max_prompt_tokens} prompt and {rollout.max_response_tokens} response tokens are "
        f"{longest}, but the model has {context} positions; lower either."
    )
    if config.model.factory is None or rollout.max_response_tokens >= context:
        yield Finding("error", "rollout.max_response_tokens", text)
    else:
        room = context - rollout.max_response_tokens
        text += f" A prompt of more than {room} tokens is set aside when an engine gets it."
        yield Finding("note", "rollout.max_response_tokens", text)


def _missing_files(directory: Path) -> Findings:
    """Errors for weights or a tokenizer that are missing, as after a partial download."""
    wanted = {"weights": WEIGHTS, "tokenizer": TOKENIZERS}
    for what, patterns in wanted.items():
        if not any(any(directory.glob(pattern)) for pattern in patterns):
            yield Finding(
                "error", "model.path",
                f"{directory} has a config.json and no {what}: none of {', '.join(patterns)}. Download or "
                "save the whole model.",
            )  # fmt: skip
    if shards := missing_shards(directory):
        yield Finding(
            "error", "model.path",
            f"{directory} lacks {len(shards)} of the files that its index names as its weights, first "
            f"{shards[0]}. Download or save the whole model.",
        )  # fmt: skip


def _download(config: Config) -> str:
    name = config.model.path
    if HUB_NAME.fullmatch(name):
        return f"hf download {name} --local-dir {name.rpartition('/')[2]}"
    return "hf download NAME --local-dir DIR"


def _architecture_findings(config: Config, shape: Shape, weights: Shapes) -> Findings:
    for field, text in adapter_problems(config, shape, weights):
        yield Finding("error", field, text)
    for level, field, text in model_findings(config, shape):
        yield Finding(level, field, text)


def _check_run_directory(config: Config) -> Findings:
    resume = config.run.resume
    if resume not in ("auto", "never") and not is_file(Path(resume) / "run.db"):
        yield Finding(
            "error", "run.resume",
            f"is {resume!r}, and there is no run.db in it, nor is it a checkpoint. Expected `auto`, `never`, "
            "the directory of a run that is to go on, or a checkpoint to begin from.",
        )  # fmt: skip
        return
    directory = (Path(config.run.dir) / config.run.name).absolute()
    if (length := len(os.fsencode(directory.name))) > MAX_NAME:
        text = f"has {length} bytes; expected {MAX_NAME} at most. Choose a shorter one."
        yield Finding("error", "run.name", text)
        return
    if not is_plain_line(str(directory)):
        text = f"{str(directory)!r} is no path in UTF-8 without control characters. Choose another name."
        yield Finding("error", "run.name", text)
    versions = config.weights.directory
    folders = {"run.dir": directory} | ({} if versions == "auto" else {"weights.directory": Path(versions)})
    for field, folder in folders.items():
        nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if exists(place))
        if not is_dir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
            text = f"{folder} cannot be written: {nearest} is not a folder that you may write to."
            yield Finding("error", field, text)


def _check_modules(config: Config) -> Findings:
    if told := hides_python([os.getcwd()] if config.reward.function or config.agent.is_on else []):
        yield Finding("note", "agent.function" if config.agent.is_on else "reward.function", told)


def _check_keys(config: Config) -> Findings:
    if config.controller.keys:
        try:
            Keyring(config.controller.keys)
        except ConfigError as error:
            yield Finding("error", "controller.keys", str(error))


def _check_port(config: Config) -> Findings:
    if config.controller.bind.startswith("ipc://"):
        try:
            check_unix_path(Path(config.controller.bind.removeprefix("ipc://")))
        except ConfigError as error:
            yield Finding("error", "controller.bind", str(error))
    host, _, port = config.controller.bind.removeprefix("tcp://").rpartition(":")
    if not config.controller.bind.startswith("tcp://") or not port.isdigit():
        return
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == "*" else host.strip("[]"), int(port)))
        except OSError as error:
            run, bind = run_folder(config), config.controller.bind
            text = f"{bind} cannot be bound: {error.strerror}. Choose another port, or `auto`."
            own = f" Is it this run, at work already? `launch.py status {run}` says how it stands."
            yield Finding("error", "controller.bind", text + own * exists(run / "run.db"))


def _check_descriptors(config: Config) -> Findings:
    found = limit()
    local = config.rollout.instances + config.reward.workers
    if local <= found.workers:
        yield Finding("note", "controller.bind", found.in_words())
        return
    field = "rollout.instances" if config.rollout.instances > found.workers else "reward.workers"
    yield Finding(
        "error", field,
        f"{local:,} workers of this machine are too many: {found.in_words()} Start fewer here, or raise the "
        "hard limit (`ulimit -Hn`).",
    )  # fmt: skip


def _check_devices(config: Config) -> Findings:
    yield from starmap(Finding, device_findings(config))


def _check_trackers(config: Config) -> Findings:
    yield from starmap(Finding, tracker_remarks(config))
    if (told := config.notify.command) and shutil.which(told[0]) is None:
        yield Finding("error", "notify.command", no_program(told[0]))


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


def _check_sampler(config: Config) -> Findings:
    """Notes on prompts and a loss for which batches of similar length gain little or shift weights."""
    if not config.staleness.sampler.startswith("similar_length"):
        return
    functions = [place for place, data in config.data.each if kind_of(data.path) == "function"]
    if functions or config.data.epochs == 1:
        why = f"{functions[0]} is a function" if functions else "data.epochs is 1"
        yield Finding(
            "note",
            "staleness.sampler",
            f"{why}: a prompt that does not come again is known by the mean length of its source alone, so "
            "batches of similar length gain little.",
        )
    if config.trainer.loss_aggregation == "token_mean":
        yield Finding(
            "note",
            "staleness.sampler",
            "trainer.loss_aggregation is token_mean: a token of a batch of short responses then weighs more "
            "than one of a batch of long ones. sequence_mean, sequence_sum and group_mean weigh both alike.",
        )


def _check_evaluation(config: Config) -> Findings:
    evaluation = config.evaluation
    if not evaluation.every_steps:
        if evaluation.data:
            yield Finding("note", "evaluation.every_steps", "is 0, so nothing is evaluated.")
        return
    counts: list[int | None] = []
    for one in evaluation.data.values():
        counts.append(_prompt_count(one))
    every, steps = evaluation.every_steps, config.run.steps
    times = steps // every + evaluation.at_start + (evaluation.at_end and steps % every > 0)
    known, each = sum(count or 0 for count in counts), evaluation.samples
    words = f"{'at least ' * (None in counts)}{known} held-out prompts x {each} samples = {known * each}"
    training = steps * config.trainer.batch_groups * config.rollout.group_size
    share = times * known * each / training
    yield Finding(
        "note", "evaluation.every_steps",
        f"{words} responses each time, {times} times; all together {share:.1%} of the {training} "
        "responses that are trained.",
    )  # fmt: skip


def _prompt_count(one: HeldOutSettings) -> int | None:
    """Rows of a held-out set, at most `max_prompts`; None if only running code or a download would tell."""
    try:
        if not format_of(one.path)[1]:
            return one.max_prompts or None
        count = len(open_table(one, one.max_prompts or None))
    except (OSError, ConfigError):  # `samples` says what is wrong
        return None
    return min(count, one.max_prompts or count)
