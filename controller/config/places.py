"""Makes the paths of a configuration absolute, and finds the file that a mistyped one may mean.

Invariants: files are looked for and not opened; a path without a file stays as it is, for `check` to report;
`~` at the beginning of a path is the home of the user who reads the configuration.
"""

import difflib
import glob
import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

from controller.config.data import DataSettings
from controller.config.evaluation import EvaluationSettings
from controller.config.models import Config, Section
from controller.config.pluggable import BUILT_IN, FILES, FOLDERS
from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from protocol.files import is_dir, is_file
from protocol.rewards.kinds import FunctionReward, ModelReward, NamedReward
from protocol.settings import RewardSettings

TASKSET = "verifiers:"
TOLD_BY_NAME = (".csv", ".tsv")
"""Ends of names that alone tell the format of a file."""
TABLES = (*TOLD_BY_NAME, ".parquet", ".jsonl", ".json", ".ndjson", ".arrow")
"""Ends of names of tables: a link to one is read as its file says."""
AnySection = TypeVar("AnySection", bound=Section)


def with_absolute_paths(config: Config, beside: Path) -> Config:
    """The configuration with absolute paths to files in the working directory, else beside the YAML file.

    A path that is found in neither place stays as it is, for `check` to report.
    """
    for dotted in FOLDERS:
        config = _with_home(config, dotted.split("."))
    if config.controller.keys:  # `revoke` of the run finds the same folder from any other
        keys = os.path.abspath(config.controller.keys)
        config = config.model_copy(update={"controller": config.controller.model_copy(update={"keys": keys})})
    sections: dict[str, Section] = {}
    for dotted in (*FILES, *BUILT_IN):
        section_name, field = dotted.split(".")
        section: Section = sections.get(section_name) or getattr(config, section_name)
        value = cast("str | None", getattr(section, field))
        if not value:
            continue
        found = os.path.expanduser(value)
        if dotted != "model.path" or not config.model.factory:
            found = _absolute(value, beside, is_data=dotted == "data.path", is_model=dotted == "model.path")
        sections[section_name] = section.model_copy(update={field: found})
    evaluation = cast("EvaluationSettings", sections.get("evaluation", config.evaluation))
    data = {
        name: one.model_copy(update={"path": _absolute(one.path, beside, is_data=True)})
        for name, one in evaluation.data.items()
    }
    sections["evaluation"] = evaluation.model_copy(update={"data": data})
    reward = cast("RewardSettings", sections.get("reward", config.reward))
    rewards = tuple(_reward_with_absolute_path(one, beside) for one in reward.rewards)
    sections["reward"] = reward.model_copy(update={"rewards": rewards})
    prompts = cast("DataSettings", sections.get("data", config.data))
    sources = [
        one.model_copy(update={"path": _absolute(one.path, beside, is_data=True)}) for one in prompts.sources
    ]
    agent = cast("AgentSettings", sections.get("agent", config.agent))
    command = tuple(_file_at(word, beside) for word in agent.command)
    sections["agent"] = agent.model_copy(update={"command": command})
    trackers = tuple(_absolute(name, beside) for name in config.logging.trackers)
    sections["logging"] = config.logging.model_copy(update={"trackers": trackers})
    told = tuple(_file_at(word, beside) for word in config.notify.command)
    sections["notify"] = config.notify.model_copy(update={"command": told})
    sections["data"] = prompts.model_copy(update={"sources": sources})
    return config.model_copy(update=sections)


def _with_home(section: AnySection, path: Sequence[str]) -> AnySection:
    """The section with `~` expanded in the field at `path`."""
    name, *inside = path
    value = getattr(section, name)
    found = _with_home(value, inside) if inside else os.path.expanduser(value)
    return section.model_copy(update={name: found})


def _reward_with_absolute_path(reward: NamedReward, beside: Path) -> NamedReward:
    if isinstance(reward, FunctionReward):
        return reward.model_copy(update={"function": _absolute(reward.function, beside)})
    if isinstance(reward, ModelReward):
        return reward.model_copy(update={"path": _absolute(reward.path, beside, is_model=True)})
    return reward


def _file_at(word: str, beside: Path) -> str:
    """One word of a command: made absolute if it is the path of a file, else unchanged."""
    is_bare = Path(word).name == word and not Path(word).suffix  # python3, and not python3 of this folder
    file = os.path.expanduser(word)
    found = (
        folder / file for folder in (Path.cwd(), beside.absolute())
    )  # not resolved: environments are links
    return word if is_bare else next((str(one) for one in found if os.path.isfile(one)), word)


def _stands_for_files(pattern: Path) -> bool:
    return glob.has_magic(str(pattern)) and bool(glob.glob(str(pattern)))


def _absolute(value: str, beside: Path, *, is_data: bool = False, is_model: bool = False) -> str:
    """The absolute path of a value, or the value if nothing is found; an import path keeps its `:name`."""
    if is_data and value.startswith(TASKSET):
        inside, question, options = value.removeprefix(TASKSET).partition("?")
        return f"{TASKSET}{_absolute(inside, beside)}{question}{options}"
    value = os.path.expanduser(value)
    file, separator, name = value.rpartition(":")
    if not (separator and file.endswith(".py") and name.isidentifier()):
        file, separator, name = value, "", ""
    for folder in (Path.cwd(), beside):
        found = folder / file
        # os.path, not pathlib: for a name that is too long for a file system it returns False
        is_there = os.path.isfile(found) if separator else (
            (is_data and (os.path.exists(found) or _stands_for_files(found)))
            or (is_model and os.path.exists(found / "config.json"))
        )  # fmt: skip
        if is_there:
            return f"{_file_of(found)}{separator}{name}"
    return value


def _file_of(found: Path) -> Path:
    """The path without links; that of the link where it alone says what the file is, or where it stays."""
    whole = found.resolve()
    if os.path.exists(found) and not os.path.exists(whole):
        return found  # a pipe of a shell: its link names no file
    suffix = found.suffix.lower()
    is_nameless = suffix in TOLD_BY_NAME and whole.suffix.lower() not in TABLES  # as in the cache of the Hub
    is_dated = any(part.startswith("..") for part in whole.parts)  # a mount of Kubernetes, of this pod alone
    if is_dated:  # by the link of a file, or of a folder above it
        return Path(os.path.abspath(found))
    return found.parent.resolve() / found.name if is_nameless else whole


def file_meant(file: Path) -> str:
    """A sentence with the configuration that is there and that a mistyped path may mean, or ""."""
    folders = [folder for folder in (file.parent, Path("examples")) if is_dir(folder)]
    there = {str(one): one.stem for folder in folders for one in sorted(folder.glob("*.yaml"))}
    near = difflib.get_close_matches(str(file), there, 1)
    near = near or [name for name, stem in there.items() if stem == file.stem]
    return f"Did you mean {near[0]}? " if near else ""


def run_folder(config: Config) -> Path:
    """The run directory: the one that `run.resume` names, or `run.dir/run.name`."""
    run = config.run
    return Path(run.dir) / run.name if run.resume in ("auto", "never") else Path(run.resume)


def from_checkpoint(config: Config) -> Config:
    """The configuration with the checkpoint that `run.resume` may name as the model of a new run.

    The same command goes on with that new run afterwards. Raises: ConfigError if the checkpoint belongs to
    the new run itself, or is an adapter.
    """
    if config.run.resume in ("auto", "never"):  # these are words, also where a folder has such a name
        return config
    checkpoint = Path(config.run.resume).absolute()
    if is_file(checkpoint / "adapter_config.json"):
        raise ConfigError(
            f"run.resume is the checkpoint {checkpoint}, which holds a LoRA adapter and no model. Expected a "
            "model to begin from: merge the adapter into its own (docs/trainer.md says how) and name the "
            "result as model.path; to go on with the adapter's run, name the directory of that run."
        )
    if not is_dir(checkpoint / "trainer") or not is_file(checkpoint / "config.json"):
        return config
    if (Path(config.run.dir) / config.run.name).absolute() in checkpoint.parents:
        raise ConfigError(
            f"run.resume is the checkpoint {checkpoint}, which belongs to the run {config.run.name!r} "
            "itself. Expected one of another run, to begin a new one from its weights: choose another "
            "run.name; to go on with the run, set run.resume=auto."
        )
    model = config.model.model_copy(update={"path": str(checkpoint), "factory": None})
    run = config.run.model_copy(update={"resume": "auto"})
    return config.model_copy(update={"model": model, "run": run})
