"""Checks the functions that a configuration names by import path.

Invariants: in this process sources are parsed, never run; strategies are called on made-up situations in
another process, as the controller imports and calls them anyway; a loss is called, and an agent imported,
only if `is_thorough`."""

import difflib
import os.path
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from controller.check.data import Remark
from controller.check.source import Definition, call_problem, find_import_path, look_up
from controller.config.models import TRACKERS, Config
from controller.config.pluggable import BUILT_IN, CALLED, NOT_BUILT_IN
from protocol.asking import ask
from protocol.errors import Unanswered
from strategies.kinds import STRATEGIES

TRIAL_S = 30.0  # to import the module, and for a few dozen calls
AGENT_S = 120.0  # to import an agent, which may bring a whole library, and to reach its server

Remarks = Iterator[Remark]


def plugin_remarks(config: Config, *, is_thorough: bool = False) -> Remarks:
    """Remarks on every key of `pluggable.BUILT_IN`. `is_thorough`: try a loss and an agent, too (seconds)."""
    yield from _command_remarks(config)
    has_failed = False
    for key, known in BUILT_IN.items():
        value = _value(config, key)
        if value is None or value in known:
            continue
        problem = _problem(key, value, known)
        field = key.partition(".")[2]
        if problem is not None:
            has_failed |= key == "agent.function"
            yield "error", key, problem
        elif field in STRATEGIES:
            sources = [(source.name, source.weight) for source in config.data.sources]
            question = {"field": field, "name": value, "sources": sources}
            yield from _tried("controller.check.strategies", key, question)
        elif key == "trainer.loss" and is_thorough:
            yield from _tried(
                "workers.trainer.losses.own",
                key,
                {"name": value, "settings": config.trainer.model_dump_json()},
            )
    if is_thorough and not has_failed:
        yield from _agent_remarks(config)


def _agent_remarks(config: Config) -> Remarks:
    """Remarks on the agent that this machine will run: it is imported in another process."""
    agent = config.agent
    if not (agent.function and agent.workers):
        return
    try:
        question = {"agent": agent.model_dump_json()}
        problem = ask("workers.agent.try_agent", question, limit_s=AGENT_S)
    except Unanswered as error:
        problem = f"the process that imported {agent.function} {error}. Expected an import that comes back."
    if problem is not None:
        yield "error", "agent.function", problem


def _command_remarks(config: Config) -> Remarks:
    """Remarks on the program of `agent.command`, if this machine will run it."""
    command = config.agent.command
    if not command or not config.agent.workers:
        return
    if shutil.which(command[0]) is None:
        yield "error", "agent.command", no_program(command[0])
    elif (script := _script_of_python(command)) and not os.path.isfile(script):
        yield (
            "error", "agent.command",
            f"names the script {script!r}, and there is no such file in {Path.cwd()} or beside the "
            "configuration. Mind its name, or give an absolute path.",
        )  # fmt: skip


def _script_of_python(command: Sequence[str]) -> str | None:
    """The script that a command has Python run, `[python3, script.py]`; None of any other command."""
    is_python = re.fullmatch(r"python[\d.]*", Path(command[0]).name)
    return command[1] if is_python and len(command) > 1 and command[1].endswith(".py") else None


def no_program(name: str) -> str:
    """What to do about a command whose program this machine lacks."""
    return (
        f"names the program {name!r}, which this machine has not; expected a name that PATH has, or the path "
        "of a file that may be executed. A script needs one: [python3, script.py]."
    )


def tracker_remarks(config: Config) -> Remarks:
    """Remarks on trackers that would show nothing: there is no such name, file or package."""
    key = "logging.trackers"
    for name in config.logging.trackers:
        if ":" in name:
            if problem := find_import_path(name):
                yield "error", key, problem
        elif name not in TRACKERS:
            yield (
                "error", key,
                f"there is no tracker {name!r}; expected one of {', '.join(TRACKERS)}, or module:function or "
                "file.py:function.",
            )  # fmt: skip
        elif name == "wandb" and not _is_installed(name):
            yield "note", key, f"{name} is not installed: the run does without it. Or: pip install {name}."


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    return found is not None and found.origin is not None  # a mere folder of that name has no origin


def _value(config: Config, key: str) -> str | None:
    section, field = key.split(".")
    value: str | None = getattr(getattr(config, section), field)
    if key == "agent.function":
        return config.agent.import_path or None
    if key == "evaluation.reward_function":
        return value or None  # empty: the rewards of training are used
    is_elsewhere = config.trainer.is_supervised or config.reward.rewards or (not value and config.agent.is_on)
    return None if key == "reward.function" and is_elsewhere else value


def _problem(key: str, value: str, known: Collection[str]) -> str | None:
    if not value:
        names = ", ".join(known)
        return f"is empty; expected the import path of a function that scores responses, or one of {names}."
    if known and ":" not in value:
        if why := NOT_BUILT_IN.get(key, {}).get(value):
            return f"{value!r} {why}."
        near = difflib.get_close_matches(value, known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        return (
            f"{value!r} is neither built in ({', '.join(known)}) nor an import path such as "
            f"`mine.py:function`.{meant}"
        )
    return import_problem(key, value, known)


def import_problem(key: str, value: str, known: Collection[str] = ()) -> str | None:
    """Why the function with this import path does not fit the key; None if it does."""
    found = look_up(value)
    if isinstance(found, str):
        return found + (f" Built in: {', '.join(known)}." if known else "")
    if key in CALLED and isinstance(found, Definition) and found.parameters is not None:
        words, positional, by_name = CALLED[key]
        if problem := call_problem(found.parameters, positional=positional, by_name=by_name):
            return f"{found.place} {problem}; it is called as {words}."
    return None


def _tried(module: str, key: str, question: Mapping[str, object]) -> Remarks:
    try:
        for level, text in ask(module, question, limit_s=TRIAL_S):
            yield level, key, text
    except Unanswered as error:
        yield (
            "error",
            key,
            f"{question['name']} was called on made-up arguments, and the process {error}. Expected answers "
            "in milliseconds, and that it never ends the process.",
        )
