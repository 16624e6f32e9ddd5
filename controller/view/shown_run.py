"""One run that is shown: its journal, its core at any moment, its samples and metrics.

Invariants: the run is only read, and by one thread at a time; a run that goes on is followed to its newest
event when somebody looks; of two replicas one stays at the newest event, so that who looks back does not send
those who look at now through the history again.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from controller.core.core import Core
from controller.durability.core_image import InParts
from controller.durability.recording import Recording
from controller.history.alarms import alarms
from controller.history.sample_text import SampleGroup, SampleReader, rounded
from controller.history.story import Beginning
from controller.history.why import why
from controller.view.past.background import Background
from controller.view.past.kept_past import LEAST_EVENTS, KeptPast, find_past, keep_past
from controller.view.past.life import as_json, life_of
from controller.view.past.replica import Instant, Replica
from controller.view.past.timeline import picture
from controller.view.pictures import event_of, figures_of, group_of, ledger_of, now_of
from protocol.errors import RunError

Json = dict[str, Any]
Found = TypeVar("Found")
MOST_LINES = 200_000  # of metrics.jsonl


class ShownRun:
    """A run directory, or a copy of one, or its run.db."""

    def __init__(self, run: str | Path, *, keyframes_bytes: int | None = None) -> None:
        """Nothing is read before somebody looks; `keyframes_bytes`: default what the run's settings say."""
        path = Path(run)
        self.path = path if path.is_dir() else path.parent
        self._given = path
        self._lock = Lock()
        self.name = self.path.resolve().name
        self._newest: Replica | None = None
        self._past: Replica | None = None
        self._keyframes_bytes = keyframes_bytes
        self._recording: Recording | None = None
        self._background: Background | None = None
        self._read: dict[str, tuple[int, list[Json]]] = {}  # lines of files, by name, with the size they had
        self._saved = 0  # the event up to which the pass is kept beside the run
        self._lives: dict[int, Json] = {}  # of groups that have left, by number

    # -- what it is -----------------------------------------------------------------------------------

    def facts(self) -> Json:
        """What the run is, without stepping through anything.

        Raises: RunError if this release cannot read it.
        """
        recording = self._look()
        return {
            "name": self.name,
            "path": str(self.path),
            "state": self.state(),
            "first": recording.pruned,
            "last": recording.last,
            "until_s": recording.until_s,
            "other_release": recording.other_release(),
            "config": recording.config().model_dump(mode="json"),
        }

    def state(self) -> str:
        """`live`, `over`, or `gone`: its controller ended without a word."""
        if (self.path / "summary.json").exists():
            return "over"
        return "live" if _controller(self.path) is not None else "gone"

    # -- its core at a moment -------------------------------------------------------------------------

    def moment(self, at: dict[str, str], seek: str = "") -> Json:
        """Where it stands at a moment, and the event that brought it there.

        `seek`: `next` or `last` for the nearest event behind or before that gave commands.
        """

        def show(replica: Replica, instant: Instant) -> Json:
            find = {"next": replica.decision_after, "last": replica.decision_before}
            return _place(replica, find.get(seek, replica.with_turn)(instant.number))

        return self._with(at, show)

    def why(self, at: dict[str, str]) -> Json:
        """The page Why: what the strategies were asked at an event, and why they answered as they did."""

        def show(replica: Replica, instant: Instant) -> Json:
            instant = replica.with_turn(instant.number)
            found = _place(replica, instant)
            if instant.turn is None:
                return found | {"decisions": []}
            recorded = instant.turn.recorded
            replica.at(recorded.number - 1)
            core = replica.copy()
            decisions = why(
                core, lambda core: core.step(recorded.now, recorded.event, decides=not recorded.is_joined)
            )
            return found | {"decisions": [asdict(decision) for decision in decisions]}

        return self._with(at or {"event": str(self._look().last)}, show)

    def now(self, at: dict[str, str]) -> Json:
        """The page Now."""

        def show(replica: Replica, instant: Instant) -> Json:
            core = instant.core
            newest = figures_of(self._lines("metrics.jsonl"), core.state.steps)
            found: Json = {"alarms": self._alarms(core), "last_step": newest}
            if not instant.number:  # it has not been told that the run begins, so nothing is amiss
                found["idle_because"] = ""
            return _place(replica, instant) | now_of(core) | found

        return self._with(at, show)

    def ledger(self, at: dict[str, str]) -> Json:
        """The page Ledger."""
        return self._with(at, lambda replica, instant: _place(replica, instant) | ledger_of(instant.core))

    def group(self, number: int, at: dict[str, str]) -> Json:
        """A group as it stands at a moment, and its whole life. Raises: RunError if nothing names it."""
        standing = self._with(at, lambda replica, instant: {"standing": group_of(instant.core, number)})
        with self._answering():
            recording = self._look()
            life = self._lives.get(number)
            if life is None:
                life = as_json(life_of(recording, number, self._beginning(recording, number)))
                if self.state() != "live":
                    self._lives[number] = life
            reader = SampleReader(recording)
            kept = [key for key in reader.kept() if key[1] == number]
        return {**standing, "life": life, "samples": kept}

    def timeline(self, begin_s: float | None, end_s: float | None, wanted: str) -> Json:
        """The page Timeline, as far as the pass over the history has come; default the whole run."""
        with self._answering():
            recording = self._look()
            background = self._follow(recording)
        with background.lock:
            until_s = recording.until_s if end_s is None else end_s
            shown = picture(background.timeline, begin_s or 0.0, until_s, wanted=wanted)
        return shown | {"until_s": recording.until_s} | self._progress(recording)

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        """The core that goes back and forth, for whoever looks at it alone."""
        with self._answering():
            past = self._replica_of_past(self._look())
            yield past

    def join(self) -> None:
        """Wait until the pass over the history is at its end."""
        if self._background is not None:
            self._background.join()

    # -- what it wrote --------------------------------------------------------------------------------

    def samples(self) -> Json:
        """The keys of all kept samples with what a list shows of them."""
        with self._lock:
            reader = SampleReader(self._look())
            return {"kept": reader.kept(), "has_text": reader.has_text}

    def sample(self, step: int, group: int) -> Json:
        """One kept group. Raises: RunError if it is not kept."""
        with self._lock:
            found = SampleReader(self._look()).read(step, group)
        if found is None:
            raise RunError(f"No sample of group {group} of step {step} is kept; expected one of the list.")
        return sample_as_json(found)

    def metrics(self) -> Json:
        """metrics.jsonl and evaluations.jsonl as columns."""
        return {
            "steps": _columns(self._lines("metrics.jsonl")),
            "evaluations": _columns(self._lines("evaluations.jsonl")),
        }

    def _alarms(self, core: Core) -> list[Json]:
        """What was wrong after the last step that the core has made."""
        steps = core.state.steps
        made = [line for line in self._lines("metrics.jsonl") if _at_most(line, "step", steps)]
        evaluated = [
            line for line in self._lines("evaluations.jsonl") if _at_most(line, "policy_version", steps)
        ]
        found = alarms(made, evaluated, bound=core.state.config.staleness.max_staleness)
        return [alarm._asdict() for alarm in found]

    def _lines(self, name: str) -> list[Json]:
        """Those of a file, which is read again when it has grown."""
        path = self.path / name
        size = path.stat().st_size if path.exists() else 0
        known = self._read.get(name)
        if known is None or known[0] != size:
            known = self._read[name] = size, _lines(path)
        return known[1]

    # -- the replicas ---------------------------------------------------------------------------------

    def _look(self) -> Recording:
        """The journal as it is now; one that cannot grow is not read again."""
        if self._recording is None or self.state() == "live":
            self._recording = Recording(self._given)
        return self._recording

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """One answer at a time, for which the pass over the history steps aside."""
        background = self._background
        with background.answering() if background else nullcontext(), self._lock:
            yield

    def _follow(self, recording: Recording) -> Background:
        """The pass over the history, told to go on."""
        if self._background is None:
            known = find_past(self.path, recording)
            self._background = Background(recording, keep=self._offer, known=known, on_end=self._keep_past)
            if known is not None:
                self._saved = known.number
                self._replica_of_past(recording).keyframes.take_over(known.keyframes)
        self._background.follow(recording)
        return self._background

    def _offer(self, number: int, image: InParts) -> int:
        with self._lock:
            return self._replica_of_past(self._look()).offer(number, image)

    def _keep_past(self, background: Background, recording: Recording) -> None:
        """Let the next view of this run begin where the pass stands now."""
        number = background.number
        if number - self._saved < LEAST_EVENTS or (image := background.image()) is None:
            return
        with self._lock:
            keyframes = self._replica_of_past(recording).keyframes.as_plain()
        self._saved, known = number, background.timeline.as_plain()
        keep_past(self.path, recording, KeptPast(number, image, known, keyframes))

    def _progress(self, recording: Recording) -> Json:
        """How far the pass over the history is."""
        background = self._background
        if background is None:
            return {"passed": 0, "of": recording.last, "trouble": ""}
        return {"passed": background.number, "of": recording.last, "trouble": background.trouble}

    def _beginning(self, recording: Recording, group: int) -> Beginning | None:
        """A moment just before the group, if the pass over the history has come by there."""
        if self._background is None:
            return None
        with self._background.lock:
            timeline = self._background.timeline
            number, names = timeline.before(group), dict(timeline.names)
            until = timeline.last_word(group) if self._background.number >= recording.last else None
        if number is None:
            return None
        past = self._replica_of_past(recording)
        past.read_on(recording)
        instant = past.at(number)
        core = past.copy()
        return Beginning(core, instant.number, names, until)

    def _replica_of_past(self, recording: Recording) -> Replica:
        if self._past is None:
            room = self._keyframes_bytes or recording.config().view.keyframes_mb << 20
            self._past = Replica(recording, keyframes_bytes=room)
        return self._past

    def _with(self, at: dict[str, str], show: Callable[[Replica, Instant], Found]) -> Found:
        """What `show` makes of the core at a moment: `event`, `second` or `step`, else the newest."""
        with self._answering():
            recording = self._look()
            if not at:
                if self._newest is None:
                    self._newest = Replica(recording, keyframes_bytes=1, goes_back=False)
                self._newest.read_on(recording)
                return show(self._newest, self._newest.at(recording.last))
            past = self._replica_of_past(recording)
            past.read_on(recording)
            shown = show(past, _go(past, self._known_event(at)))
            self._follow(recording)
            return shown

    def _known_event(self, at: dict[str, str]) -> dict[str, str]:
        """The event of a train step in place of its number, if the pass over the history has met it."""
        step = at.get("step", "")
        if "event" in at or self._background is None or not step.isascii() or not step.isdecimal():
            return at
        with self._background.lock:
            number = self._background.timeline.event_of_step(int(step))
        return at if number is None else {"event": str(number)}


def _go(replica: Replica, at: dict[str, str]) -> Instant:
    """Raises: RunError if what was asked for is no moment."""
    try:
        if "event" in at:
            return replica.at(int(at["event"]))
        if "step" in at:
            return replica.at_step(int(at["step"]))
        return replica.at_time(float(at["second"]))
    except (ValueError, OverflowError):
        raise RunError(f"{at} is no moment: expected a number behind event, second or step.") from None


def _place(replica: Replica, instant: Instant) -> Json:
    return {
        "number": instant.number,
        "now_s": instant.now,
        "first": replica.first,
        "last": replica.last,
        "until_s": replica.recording.until_s,
        "event": event_of(instant.core, instant.turn),
    }


def sample_as_json(sample: SampleGroup) -> Json:
    """Tokens as columns, so that a response of 1,000 tokens is some 20 kB."""
    return {
        "step": sample.step,
        "group": sample.group,
        "why": sample.why,
        "prompt": sample.prompt,
        "row": sample.row,
        "staleness": sample.staleness,
        "responses": [
            {
                "member": one.member, "reward": one.reward, "parts": one.parts, "advantage": one.advantage,
                "ending": one.ending,
                "texts": [token.text for token in one.tokens],
                "logprobs": [rounded(token.logprob, 4) for token in one.tokens],
                "drifts": [rounded(token.drift, 4) for token in one.tokens],
                "weights": [rounded(token.weight, 4) for token in one.tokens],
                "versions": [token.policy_version for token in one.tokens],
            }
            for one in sample.responses
        ],
    }  # fmt: skip


def _lines(path: Path) -> list[Json]:
    """Whole lines; the last one may be in the middle of being written."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    whole = text[: text.rfind("\n") + 1].splitlines()[-MOST_LINES:]
    found: list[Json] = []
    for number, line in enumerate(whole, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise RunError(f"Line {number} of {path} is no JSON: {error}. Look at the disk.") from error
    return found


def _columns(lines: list[Json]) -> dict[str, list[float | None]]:
    """By key, a number or nothing for each line."""
    keys = dict.fromkeys(key for line in lines for key, value in line.items() if _is_number(value))
    return {key: [value if _is_number(value := line.get(key)) else None for line in lines] for key in keys}


def _at_most(line: Json, key: str, most: int) -> bool:
    value = line.get(key)
    return isinstance(value, int) and value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _controller(run: Path) -> int | None:
    """The process that holds the run; None if it has ended, or this is a copy on another machine."""
    lock = run.resolve().parent / f".{run.resolve().name}.lock"
    try:
        pid = int(lock.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid
