"""What the journal of a run says to the controller that goes on with it.

Invariants: the core is re-derived from the newest snapshot and the journal after it, and refused if it does
not want what it wanted then; nothing is written; a configuration that would change what was promised or
learned is refused key by key.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.commands import ReportStep
from controller.config import Config
from controller.core import Core
from controller.fingerprint import fingerprint
from controller.prompts import PromptSource
from controller.recording import Recording
from controller.replay import in_words, turns
from protocol.errors import ConfigError, RunError

READ_AT_ONCE = 1024  # prompts
MAY_CHANGE = (
    "run.name", "run.dir", "run.resume", "run.steps", "run.durability", "run.journal",
    "logging", "controller", "simulation", "evaluation",
    "rollout.instances", "rollout.max_running", "rollout.progress_s", "rollout.status_s", "rollout.device",
    "rollout.threads", "reward.workers", "reward.processes", "reward.concurrency", "reward.timeout_s",
    "reward.retries", "reward.max_consecutive_failures",
    "trainer.checkpoint_steps", "trainer.keep_checkpoints", "trainer.ranks", "trainer.device",
    "trainer.threads", "trainer.max_tokens_per_microbatch", "trainer.streaming",
    "trainer.activation_checkpointing", "trainer.cpu_offload",
)  # fmt: skip
"""Keys, and whole sections, with which a run may go on when they have another value than before."""


@dataclass(slots=True)
class Past:
    """A run up to its last journalled event."""

    core: Core
    now: float = 0.0  # seconds since the run began
    lines: list[dict[str, object]] = field(default_factory=list)  # all of metrics.jsonl
    unsaved_lines: int = 0  # the last of them, which no snapshot has
    replayed: int = 0  # events after the newest snapshot
    is_over: bool = False  # all its steps are made and saved, or its data has ended


def finished_steps(run: Path, config: Config) -> int | None:
    """Train steps of a run that has made as many as `config` asks for, whatever release or settings made it;
    None if it has not, or its journal must be asked."""
    try:
        summary = json.loads((run / "summary.json").read_text())
        steps = int(summary["steps"])
        return steps if summary["is_success"] and steps >= config.run.steps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_past(run: Path, config: Config) -> Past | None:
    """The run in this directory as it stood; None if it had not begun.

    Raises: ConfigError if it cannot go on with `config`; RunError if its journal is damaged, or this release
    does not decide as the one that made it.
    """
    if not _has_events(run / "run.db"):
        return None
    with Recording(run) as recording:
        past, after = _newest(recording)
        saved = len(past.lines)
        for recorded, wanted in turns(recording, past.core, after):
            past.now, past.replayed = recorded.now, past.replayed + 1
            past.lines += [command.metrics for command in wanted if isinstance(command, ReportStep)]
            if recorded.fingerprint not in (None, fingerprint(wanted)):
                raise RunError(
                    f"{run} cannot be taken up again: at event {recorded.number} ({in_words(recorded)}) this "
                    "release wants something else than the one that made the run, or a strategy of yours has "
                    f"changed. Use what made it, {_way_on(run)}."
                )
    past.unsaved_lines = len(past.lines) - saved
    state = past.core.state
    is_done = state.steps >= config.run.steps or past.core.is_out_of_data
    past.is_over = state.finished and state.ending_is_success and is_done
    if not past.is_over:
        _refuse_changes(run, state.config, config)
    return past


def _newest(recording: Recording) -> tuple[Past, int]:
    """The newest moment that a snapshot has, and the number of its last event; else the beginning."""
    snapshot = recording.snapshot()
    if snapshot is None:
        return Past(recording.make_core()), recording.pruned
    return Past(snapshot.core, snapshot.now, recording.lines(snapshot.core.state.steps)), snapshot.number


def advance(prompts: PromptSource, count: int, known: Mapping[int, bytes]) -> None:
    """Read past the first `count` prompts. `known`: rows that the run still needs, by number.

    Raises: ConfigError if the source gives others than it gave, or fewer.
    """
    number = 0
    while number < count:
        rows = prompts.read(min(READ_AT_ONCE, count - number))
        for group, row in enumerate(rows, number):
            if known.get(group, row) != row:
                raise ConfigError(
                    f"Prompt {group} was {_shown(known[group])} when the run began, and is now "
                    f"{_shown(row)}. Expected the same prompts in the same order: bring the old "
                    "data back, or set run.resume=never to begin anew."
                )
        number += len(rows)
        if prompts.is_end and number < count:
            raise ConfigError(
                f"The run has read {count} prompts, and its source ends after {number} now. Expected the "
                "same prompts as before: bring the old data back, or set run.resume=never to begin anew."
            )


def _refuse_changes(run: Path, was: Config, now: Config) -> None:
    before, after = _flat(was.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    changed = [key for key in before if not _may_change(key) and before[key] != after.get(key)]
    if changed:
        listed = "\n".join(f"  {key}: {before[key]!r} there, {after[key]!r} now" for key in changed)
        raise ConfigError(
            f"{run} holds a run that is not finished, made with other settings:\n{listed}\nA run goes on "
            "only with what it promised and learned from. Put these keys back, choose another run.name, "
            f"{_way_on(run)}."
        )


def _way_on(run: Path) -> str:
    """What else can be done with a run that this command cannot go on with."""
    whole = [place.parent for place in run.glob("checkpoints/step_*/config.json")]
    places = [place for place in whole if not (place / "adapter_config.json").exists()]
    numbered = {place.name.removeprefix("step_"): place for place in places}
    newest = max((number for number in numbered if number.isdigit()), key=int, default=None)
    begin = "or set run.resume=never to set the run aside and begin anew"
    if newest is None:
        return begin
    return (
        f"begin a new run from its newest checkpoint (run.resume={numbered[newest]} and another run.name), "
        f"{begin}"
    )


def _may_change(key: str) -> bool:
    return any(key == may or key.startswith(f"{may}.") for may in MAY_CHANGE)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and key != "columns":
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _has_events(file: Path) -> bool:
    db = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return db.execute("SELECT EXISTS (SELECT 1 FROM events)").fetchone() == (1,)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return False  # killed while the file was made
        raise
    except sqlite3.DatabaseError:
        return True  # Recording says what is wrong with it
    finally:
        db.close()


def _shown(row: bytes) -> str:
    text = row.decode(errors="replace")
    return text if len(text) <= 120 else f"{text[:117]}..."
