"""`launch.py eval`: evaluates a checkpoint or an endpoint on held-out rows, without a run.

Invariants: there is no trainer and no journal; figures are computed as in a run's evaluation of the same
rows; run directories are not changed.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from controller.config.evaluation import copies_problem
from controller.config.models import Config
from controller.config.places import run_folder
from controller.core.state.agents.episode_figures import overhead_figures
from controller.core.state.evaluation_report import Answered, line
from controller.core.worker_settings import worker_settings
from controller.data.held_out import HeldOut, read_held_out
from controller.data.sources import Sources
from controller.durability.damage import newest_checkpoint
from controller.host.offline.saved_adapter import ADAPTER_CONFIG, lora_of
from protocol.asking import ask
from protocol.engines import ENGINES
from protocol.errors import ConfigError, RunError, Unanswered
from protocol.files import is_file

LIMIT_S = 7 * 24 * 3600.0
OWN_ENVIRONMENT = "in an environment of its own"


class Evaluee(NamedTuple):
    """What is evaluated: a checkpoint's directory, or an endpoint."""

    checkpoint: str = ""
    base_url: str = ""
    model: str = ""
    adapter: str = ""  # set by `checked`: directory of an adapter; `checkpoint` is then its base model

    def checked(self, config: Config) -> "Evaluee":
        """A checked copy, with the default directory if none is given. Raises: ConfigError."""
        if self.base_url:
            if self.checkpoint or not self.model:
                raise ConfigError(
                    "--base-url needs --model NAME, as the endpoint calls it, and no --checkpoint."
                )
            return self
        if self.model:
            raise ConfigError("--model is the name of a model at an endpoint; give --base-url, too.")
        name = config.rollout.engine
        if name in ENGINES and ENGINES[name].about.endswith(OWN_ENVIRONMENT):
            raise ConfigError(
                f"`rollout.engine: {name}` runs {OWN_ENVIRONMENT}. Serve the checkpoint with it and give "
                "--base-url, or evaluate with rollout.engine=torch."
            )
        directory = _directory(self.checkpoint, config)
        if is_file(directory / ADAPTER_CONFIG):
            return self._replace(checkpoint=str(_model_below(directory, config)), adapter=str(directory))
        return self._replace(checkpoint=str(directory))


def _directory(given: str, config: Config) -> Path:
    """The directory of a model or an adapter. Raises: ConfigError if it has none."""
    resume = config.run.resume
    if not given and resume not in ("auto", "never") and not is_file(run_folder(config) / "run.db"):
        raise ConfigError(
            f"run.resume is {resume!r}, and there is no run.db in it. Expected the directory of a run, or "
            "--checkpoint DIR."
        )
    newest = newest_checkpoint(run_folder(config))
    directory = Path(given or newest or _initial_model(config))
    if not any(is_file(directory / name) for name in ("config.json", ADAPTER_CONFIG)):
        like = f", such as {newest}" if newest else ""
        raise ConfigError(
            f"{directory} holds no model (no config.json) and no adapter (no {ADAPTER_CONFIG}). Expected "
            f"--checkpoint DIR{like}, or a run with a checkpoint, or `model.path` on this machine."
        )
    return directory


def _initial_model(config: Config) -> Path:
    """Directory of the initial model, also if a factory made it."""
    return run_folder(config) / config.model.path


def _model_below(adapter: Path, config: Config) -> Path:
    """The base model of an adapter, by the configuration. Raises: ConfigError."""
    model = _initial_model(config)
    if not is_file(model / "config.json"):
        raise ConfigError(
            f"{adapter} is an adapter, and the model below it is not at {model} (no config.json). Expected "
            "that model on this machine: model.path=DIR."
        )
    return model


def evaluate(
    config: Config, evaluee: Evaluee, *, rows: int = 0, samples: int = 0, concurrency: int = 0,
    transcripts: str = "", progress_to: int | None = None, import_paths: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """The figures of all rows, as a line of evaluations.jsonl has them.

    `rows`: most rows, 0 for all of `evaluation.data`; `samples`: 0 for `evaluation.samples`; `concurrency`: 0
    for 64, or `agent.concurrency` with an agent; `transcripts`: a file to append attempts to;
    `progress_to`: a descriptor for lines of progress.
    Raises: ConfigError; RunError if the evaluating process has died.
    """
    evaluee = evaluee.checked(config)
    if transcripts:
        _check_writable(transcripts)
    name = "--samples" if samples else "evaluation.samples"
    samples = samples or config.evaluation.samples
    if problem := copies_problem(samples, config.evaluation.sampling):
        raise ConfigError(f"{name} {problem}")
    held_out = _read(config, rows)
    settings = worker_settings(config, str(run_folder(config)), import_paths)
    settings = settings.model_copy(update={"is_colocated": False})
    if evaluee.adapter:
        lora = lora_of(Path(evaluee.adapter))
        trainer = settings.trainer.model_copy(update={"lora": lora})
        settings = settings.model_copy(update={"trainer": trainer})
    question = {
        "settings": settings.model_dump_json(),
        "rows": [json.loads(row) for row in held_out.rows],
        "samples": samples,
        "concurrency": concurrency or (config.agent.concurrency if config.agent.is_on else 64),
        "directory": evaluee.checkpoint,
        "adapter": evaluee.adapter,
        "base_url": evaluee.base_url,
        "model": evaluee.model,
        "transcripts": transcripts,
    }
    return _line(config, held_out, _answered(question, progress_to), samples)


def _answered(question: dict[str, Any], progress_to: int | None) -> list[dict[str, Any]]:
    """Raises: ConfigError, RunError."""
    own = None if progress_to is None else os.dup(progress_to)  # the process has its own number 2
    try:
        found = ask(
            "workers.evaluate.evaluator", question | {"progress_to": own},
            limit_s=LIMIT_S, inherited=() if own is None else (own,),
        )  # fmt: skip
    except Unanswered as error:
        raise RunError(f"The process that evaluates {error}.") from None
    finally:
        if own is not None:
            os.close(own)
    if "problem" in found:
        raise ConfigError(found["problem"])
    return found["rows"]


def _check_writable(file: str) -> None:
    """Check before an hour of work would be lost. Raises: ConfigError."""
    try:
        open(file, "a").close()
    except OSError as error:
        raise ConfigError(
            f"-o {file} cannot be written: {error.strerror}. Expected a file in a folder that is there, and "
            "that you may write to."
        ) from None


def _read(config: Config, rows: int) -> HeldOut:
    """Rows of `evaluation.data`, or of `data` if that is empty. Raises: ConfigError."""
    if config.evaluation.data:
        sets = config.evaluation.data
        if rows:  # no more are read: a function may never end
            least = {name: min(one.max_prompts or rows, rows) for name, one in sets.items()}
            sets = {name: one.model_copy(update={"max_prompts": least[name]}) for name, one in sets.items()}
        evaluation = config.evaluation.model_copy(update={"every_steps": 1, "data": sets})
        found = read_held_out(config.model_copy(update={"evaluation": evaluation}))
        return HeldOut.of(list(found.rows[: rows or None]), list(found.sources[: rows or None]))
    if not rows:
        raise ConfigError(
            "There is no `evaluation.data`, so rows are those of `data`: say how many with --rows."
        )
    return _read_data(config, rows)


def _read_data(config: Config, count: int) -> HeldOut:
    """So many rows of `data`, each at most once; of several sources as many each. Raises: ConfigError."""
    names = [source.name for source in config.data.sources] or ["data"]
    once = config.data.model_copy(update={"epochs": 1})
    wanted = [number % len(names) for number in range(count)]
    rows, numbers = Sources(config.model_copy(update={"data": once})).read(count, wanted)
    return HeldOut.of(rows, [names[number] for number in numbers])


def _line(config: Config, held_out: HeldOut, rows: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    answered: dict[int, Answered] = {}
    failed: dict[int, str] = {}
    for number, row in enumerate(rows):
        if "failed" in row:
            failed[number] = row["failed"]
            continue
        parts = tuple((name, tuple(values)) for name, values in row["parts"])
        tokens = {0: sum(row["lengths"])}
        answered[number] = Answered(tuple(row["rewards"]), tuple(row["lengths"]), row["cut"], tokens, parts)
    threshold = config.evaluation.threshold
    told = line(answered, failed, held_out.sources, samples=samples, threshold=threshold)
    turns = [count for row in rows for count in row.get("turns", ())]
    more = {"turns/mean": sum(turns) / len(turns)} if turns and config.agent.is_on else {}
    causes = Counter(cause for row in rows for cause in row.get("forks", ()))
    more |= {f"forks/{cause}": count / len(turns) for cause, count in sorted(causes.items())}
    more |= overhead_figures(ms for row in rows for ms in row.get("overhead_ms", ()))
    del told["tokens/by_version"]
    return {"samples": samples, "threshold": threshold, **told, **more, "data_digest": held_out.digest}
