"""Resumes a run: decides whether the run in a directory can be resumed, and re-derives it.

Invariants: the core is re-derived from the journal (`controller.host.resumed_run`), a broken one as it was
before the event at fault (`controller.host.going_back`); nothing is written before that, and only `find_past`
writes; a configuration that would change what the run promised or learned is refused key by key.
"""

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from controller.config.models import Config
from controller.config.places import run_folder
from controller.core.core import Core
from controller.data.initial_weights import replaced_weights
from controller.data.moved_files import as_lies_now
from controller.durability.damage import broken, newest_checkpoint, saved_versions, way_on
from controller.durability.holder import controller_of, in_use
from controller.durability.recording import Recording
from controller.durability.release import changed_files, changed_release
from controller.host.daemon_thread import in_daemon_thread
from controller.host.going_back import gone_back, set_checkpoints_aside
from controller.host.resumed_run import ResumedRun, way_on_from
from controller.host.run_directory import EVALUATIONS, METRICS, RunDirectory
from protocol.errors import ConfigError, OtherRelease, RunError, StaleFlowError
from protocol.files import exists, is_file

MAY_CHANGE = (
    "run.name", "run.dir", "run.resume", "run.steps", "run.durability", "run.journal",
    "run.private", "weights.host", "weights.directory",
    "logging", "controller", "cluster", "limits", "samples", "simulation", "evaluation", "view", "notify",
    "staleness.in_flight_batches", "staleness.objective",
    "rollout.instances", "rollout.max_running", "rollout.progress_s", "rollout.status_s", "rollout.device",
    "rollout.threads", "rollout.vllm.gpu_memory_utilization", "rollout.vllm.kv_cache_gb", "reward.workers",
    "reward.processes", "reward.concurrency", "reward.timeout_s", "reward.memory_mb",
    "reward.retries", "reward.max_consecutive_failures", "agent.workers", "agent.processes",
    "agent.concurrency", "agent.memory_mb",
    "trainer.checkpoint_steps", "trainer.keep_checkpoints", "trainer.ranks", "trainer.device",
    "trainer.threads", "trainer.max_tokens_per_microbatch", "trainer.streaming",
    "trainer.activation_checkpointing", "trainer.cpu_offload",
)  # fmt: skip
"""Keys, and whole sections, that may change when a run is resumed."""


async def find_past(
    directory: RunDirectory, config: Config, *, on_warning: Callable[[str], None]
) -> ResumedRun | None:
    """The unfinished run in the directory; None if there is none, and the directory was begun anew.

    Raises: as `read_past`; RunError, before anything is changed, if run.db has lost its end, and no
    checkpoint fits what it still has.
    """
    if not directory.has_run:
        if directory.previous is not None and config.run.resume == "auto":
            on_warning(_why_set_aside(directory.path, directory.previous))
        return None
    past, steps = None, finished_steps(directory.path, config)
    if steps is None:
        past = await in_daemon_thread(partial(read_past, directory.path, config))  # Ctrl-C ends it at once
    if past is not None:
        if not past.is_over:
            if lost := lost_end(directory.path, past):
                _refuse_without_start(directory.path, past, lost)
                past.notes.append(f"{lost} {_kept_aside(directory, past)}")
            before = past.core.state.config.weights.directory
            directory.go_on(past.metrics(), past.core.evaluation.reports, before)
            return past
        steps = past.core.state.steps
    directory.begin(is_blank=steps is None)
    if steps is not None:
        on_warning(
            f"The run in {directory.path} was finished after {steps} train steps, and is set aside at "
            f"{directory.previous}; this is a new one. To go on with the old one instead, set "
            f"run.resume={directory.previous} and raise run.steps."
        )
    return None


def _why_set_aside(run: Path, previous: Path) -> str:
    """Why an earlier run was set aside unread."""
    aside = f"it is set aside at {previous}, and this is a new one."
    if not exists(previous / "run.db"):
        return f"{run} held a run without run.db, so nothing could go on with it: {aside}"
    return (
        f"{run} held another run, and none goes on with `run.durability: off`: {aside} To go on with the old "
        f"one instead, set run.resume={previous} and leave run.durability as it had it."
    )


def lost_end(run: Path, past: ResumedRun) -> str:
    """What other files of a run hold beyond the end of its run.db, in words; "" if nothing.

    Events are in run.db before anything else is written about them, so a kill leaves no file ahead of it.
    """
    if past.forgiven:  # it was rewound on purpose, and warns of that
        return ""
    steps, evaluations = past.core.state.steps, len(past.core.evaluation.reports)
    found = []
    if (made := _last_step(run / METRICS)) > steps:
        found.append(f"{METRICS} at step {made}")
    if (checkpoint := newest_checkpoint(run)) and int(checkpoint.name.removeprefix("step_")) > steps:
        found.append(f"the newest checkpoint is {checkpoint.name}")
    if (told := _last_lines(run / EVALUATIONS)[0]) > evaluations:
        found.append(f"{EVALUATIONS} has {told} evaluations, of which run.db knows {evaluations}")
    if not found:
        return ""
    return (
        f"{run / 'run.db'} ends at step {steps}, {', '.join(found)}: its newest part is lost (a damaged or "
        "removed run.db-wal, a loss of power, or an older copy that was put back)."
    )


def _refuse_without_start(run: Path, past: ResumedRun, lost: str) -> None:
    """Refuse a run with a lost end unless a checkpoint fits what is left. Raises: RunError.

    The trainer removes old checkpoints, so all remaining ones may be of the lost part.
    """
    steps, oldest = past.core.state.steps, past.core.training.trainer_batches.oldest_start
    if oldest == 0 or any(oldest <= version <= steps for version in saved_versions(run)):
        return
    versions = f"{oldest}{f' to {steps}' * (oldest < steps)}"
    raise RunError(
        f"{lost} The run cannot go on from there: that takes a complete checkpoint of version {versions}, "
        f"and {run / 'checkpoints'} has none. Nothing was changed. Put the run.db that the run wrote back, "
        f"with its run.db-wal, {way_on_from(run)}."
    )


def _kept_aside(directory: RunDirectory, past: ResumedRun) -> str:
    """Rename files of the lost end, so that nothing overwrites them; returns a note about it."""
    with directory.in_words():
        kept = [directory.set_aside(name) for name in (METRICS, EVALUATIONS)]
        kept += set_checkpoints_aside(directory.path, past.core.state.steps)
    return (
        "What was made after it is made again, from other responses, under the same numbers. "
        f"What is left of it is kept in {', '.join(str(path) for path in kept if path)}."
    )


def _last_step(metrics: Path) -> int:
    """The newest train step with a line, checked against the number of lines; 0 if there is none."""
    count, newest = _last_lines(metrics)
    steps = []
    for line in newest:
        with suppress(ValueError, KeyError, TypeError):  # it was cut off, or damaged
            steps.append(min(count, int(json.loads(line)["step"])))
    return max(steps, default=0)


def _last_lines(file: Path) -> tuple[int, list[bytes]]:
    """Number of whole lines of a file, and its last few; none if it does not exist. Raises: ConfigError."""
    count, newest = 0, deque[bytes](maxlen=3)
    try:
        with file.open("rb") as lines:
            for line in lines:
                count += line.endswith(b"\n")
                newest.append(line)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}. Its last line tells whether run.db has lost its end; "
            "make it readable, or move it away to go on without."
        ) from error
    return count, [*newest]


def finished_steps(run: Path, config: Config) -> int | None:
    """Train steps of a run that has made as many as `config` asks for, by its summary.json.

    None if it has not, or only its journal can tell.
    """
    try:
        summary = _summary(run)
        steps = int(summary["steps"])
        return steps if summary["is_success"] and steps >= config.run.steps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_out_of_data(run: Path) -> bool:
    """Whether a run ended because its data did, before it had made its steps."""
    try:
        summary = _summary(run)
        return bool(summary["ending"] == "done" and summary["steps"] < summary["steps_wanted"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _summary(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())


def read_past(run: Path, config: Config) -> ResumedRun | None:
    """The run in this directory at its last event; None if it had not begun.

    Raises: ConfigError if it cannot be resumed with `config`; RunError if its journal is damaged, or this
    release cannot read it or decides otherwise than the one that made it.
    """
    try:
        return _read_past(run, config)
    except OtherRelease as error:
        raise RunError(f"{error} Use the release that made the run, {way_on_from(run)}.") from error


def _read_past(run: Path, config: Config) -> ResumedRun | None:
    if not _has_events(run / "run.db"):
        _refuse_if_trained(run)
        return None
    with Recording(run) as recording:
        past = gone_back(recording)
        past.notes += changed_release(past.parts)
        past.notes += changed_files(recording.told("files", dict, {}), config.as_written())
        data, weights = recording.told("data", list, []), recording.told("weights", dict, {})
    state = past.core.state
    is_done = state.steps >= config.run.steps or past.core.is_out_of_data
    past.is_over = state.finished and state.ending_is_success and is_done
    if not past.is_over:
        _refuse_changes(run, state.config, config, was_at=past.core.settings.run_dir, data=data)
        _refuse_other_weights(run, weights, config)
    return past


def why_refused(config: Config) -> str | None:
    """Why the run in the directory of `config` is not resumed with it, as far as known without its events.

    None if it may be resumed, or there is no run to resume.
    """
    run, directory = config.run, run_folder(config)
    if (pid := controller_of(directory)) is not None:
        return in_use(directory, pid)
    if run.resume == "never" or run.durability == "off":
        return None
    try:
        if exists(directory / "run.db"):
            _look_at_settings(directory, config)
    except StaleFlowError as error:
        return str(error)
    return None


def _look_at_settings(run: Path, config: Config) -> None:
    """Raises: ConfigError or RunError, as `read_past`."""
    if not _has_events(run / "run.db"):
        _refuse_if_trained(run)
    elif finished_steps(run, config) is None and not _is_out_of_data(run):
        with Recording(run) as recording:
            was_at, data = recording.facts["run_dir"], recording.told("data", list, [])
            _refuse_changes(run, recording.config(), config, was_at=was_at, data=data)
            _refuse_other_weights(run, recording.told("weights", dict, {}), config)


def known_rows(core: Core, rows: Mapping[int, bytes]) -> dict[tuple[int, int], bytes]:
    """Rows of training prompts by (source, number in the source); `rows` has them by group."""
    groups, is_one = core.state.groups, not core.state.mixture.sources
    places = {id: (0, id) if is_one else (group.source, group.source_row) for id, group in groups.items()}
    of_kept = {id: (0, id) for id in rows if is_one and id not in groups}  # in a batch that is kept
    return {place: rows[id] for id, place in {**places, **of_kept}.items() if id in rows}


def _refuse_changes(run: Path, was: Config, now: Config, *, was_at: str, data: list[Any]) -> None:
    """Raises: ConfigError with the keys that have changed.

    `was_at`: the run directory then; `data`: the fingerprints of its sources then.
    """
    before, after = _flat(was.model_dump(mode="json")), _flat(now.as_written().model_dump(mode="json"))
    meant = _flat(now.model_dump(mode="json"))

    def differ(known: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
        return [key for key in keys if _at(known, key) not in (_at(after, key), _at(meant, key))]

    changed = differ(before, (key for key in {**before, **after} if not _may_change(key)))
    if changed:
        places = was_at, str(run.absolute())
        changed = differ(_flat(as_lies_now(was, now, places=places, data=data)), changed)
    if changed:
        listed = "\n".join(line for key in changed for line in _lines(key, before, after))
        raise ConfigError(
            f"{run} holds a run that is not finished, made with other settings:\n{listed}\nA run goes on "
            "only with what it promised and learned from. Put these keys back, choose another run.name, "
            f"{way_on_from(run)}."
        )


def _refuse_other_weights(run: Path, was: Mapping[str, Any], config: Config) -> None:
    """Refuse a model whose files were replaced since the run began. Raises: ConfigError."""
    if replaced := replaced_weights(was, config):
        raise ConfigError(
            f"{run} holds a run that is not finished, and the weights in {config.model.path} are not those "
            f"that it began from: {replaced}. A run goes on only from what it learned with (a LoRA adapter "
            "and the KL belong to that model). Put these files back, choose another run.name, "
            f"{way_on_from(run)}."
        )


def _may_change(key: str) -> bool:
    return any(key == may or key.startswith(f"{may}.") for may in MAY_CHANGE)


def _lines(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What has changed at a key; of mappings in a list, as in data.sources, only the keys that differ."""
    was, now = before.get(key), after.get(key)
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [*zip(was, now, strict=True)]
        if all(isinstance(one, dict) for pair in pairs for one in pair):
            of_was, of_now = ({str(n): pair[i] for n, pair in enumerate(pairs)} for i in (0, 1))
            before, after = _flat(of_was, f"{key}."), _flat(of_now, f"{key}.")
            for inner in {**before, **after}:
                if _at(before, inner) != _at(after, inner):
                    yield from _lines(inner, before, after)
            return
    yield f"  {key}: {_at(before, key)} there, {_at(after, key)} now"


def _at(flat: Mapping[str, Any], key: str) -> str:
    return repr(flat[key]) if key in flat else "not set"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and key != "columns":
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _has_events(file: Path) -> bool:
    try:
        db = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise broken(str(file), error) from error
    try:
        return db.execute("SELECT EXISTS (SELECT 1 FROM events)").fetchone() == (1,)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise broken(str(file), error) from error
        # no table at all: killed while the file was made; any other file `Recording` refuses
        return db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone() == (1,)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return True  # Recording says what is wrong with it
    finally:
        db.close()


def _refuse_if_trained(run: Path) -> None:
    """Refuse a run.db without history in a run that has trained, or evaluated. Raises: ConfigError."""
    written = [name for name in (METRICS, EVALUATIONS) if is_file(run / name) and (run / name).stat().st_size]
    found = [f"{name} has lines" for name in written]
    if checkpoint := newest_checkpoint(run):
        found.append(f"{checkpoint} is there")
    if not found:
        return
    left = " and ".join(found)
    raise ConfigError(
        f"{run / 'run.db'} holds no history, though the run has begun: {left}. It was emptied or replaced. "
        f"Expected the file that the run wrote: {way_on(run / 'run.db')} To set all of it aside and start "
        "over under its name: run.resume=never."
    )
