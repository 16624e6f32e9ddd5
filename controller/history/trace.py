"""A run's history as a trace for Perfetto or chrome://tracing: what each worker did, and when.

Invariants: the run is only read; a slice begins with the command to a worker, on the clock of the controller,
and ends with the answer, with the order to abort it, which has none, or with the loss of the worker; every
slice that begins ends.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from math import inf
from tempfile import TemporaryDirectory
from typing import Any

from controller.core.commands import Forget, ReportStep, Send
from controller.core.core import Core
from controller.core.events import Received
from controller.durability.recording import Recording
from controller.durability.replay import Replayed, turns
from controller.history.shortened import names_at_the_beginning, names_in
from controller.history.track_events import write_track_events
from protocol import messages
from protocol.messages import Message

RUN = 0  # pid of entries of the whole run
COUNTED = ("throughput/tokens_per_s", "staleness/mean", "reward/mean")  # counters, from each step's line
Entry = dict[str, Any]
Key = tuple[object, ...]
Flows = tuple[tuple[Key, ...], tuple[Key, ...]]
"""Arrows that leave a slice, and those that end at it."""


def trace(
    recording: Recording, *, begin_s: float = 0.0, end_s: float = inf, workers: Collection[str] = ()
) -> Iterator[Entry]:
    """The entries of a trace in Chrome's JSON format, in the order of the history; times in microseconds.

    Each worker is a process: its slices are routes (by group, member and attempt), scores, pulls, train
    steps, publications and checkpoints. Counters show groups reserved and occupied, and some metrics of each
    step. In addition to that format, an entry that begins a slice has `flows`.

    `begin_s`, `end_s`: slices that overlap this span, whole; `workers`: names of workers to show; () for all.
    Raises: RunError if the history is damaged or the core fails on it.
    """
    core = recording.make_core()
    tracer = _Tracer(core, begin_s * 1e6, workers)
    yield tracer.named(RUN, "run")
    for peer, name in names_in(core).items():
        yield from tracer.attached(peer, name)
    for turn in turns(recording, core):
        if turn.recorded.now > end_s:
            break
        yield from tracer.turn(turn)
    if recording.until_s <= end_s:
        yield from tracer.end_all("the history ends", recording.until_s)
    else:
        yield from tracer.end_all("the span ends", end_s)


class _Tracer:
    def __init__(self, core: Core, begin_us: float, workers: Collection[str]) -> None:
        self._core = core
        self._begin_us, self._workers = begin_us, workers
        self._now_us = 0.0
        self._hidden: set[str] = set()  # peers
        self._early: set[str] = set()  # ids of slices that have begun before the span
        self._pids: dict[str, int] = {}  # by peer
        self._open: dict[str, dict[Key, Entry]] = {}  # by peer: slices that have not ended
        self._counts = (0, 0)

    def turn(self, turn: Replayed) -> Iterator[Entry]:
        self._now_us = turn.recorded.now * 1e6
        event = turn.recorded.event
        if isinstance(event, Received):
            if isinstance(event.message, messages.Attach):
                yield from self.attached(event.peer, event.message.name)
            for key, more in _answered(event.message):
                yield from self._end(event.peer, key, more)
            if isinstance(event.message, messages.PolicyPublished):
                yield from self._published(event.peer, event.message)
        for command in turn.commands:
            if isinstance(command, Send):
                for key in _asked(command.message):
                    yield from self._begin(command.peer, key, _flows(command.message))
                for key in _called_off(command.message):
                    yield from self._end(command.peer, key, {"ended": "abort"})
            elif isinstance(command, ReportStep):
                yield from self._counts_of(command.metrics)
            elif isinstance(command, Forget):
                yield from self._end_all(command.peer, "the worker was lost")
        ledger = self._core.state.ledger
        if self._is_shown and (counts := (ledger.reserved, ledger.occupied)) != self._counts:
            self._counts = counts
            names = {"reserved": counts[0], "occupied": counts[1]}
            yield {"ph": "C", "pid": RUN, "tid": 0, "ts": self._now_us, "name": "groups", "args": names}

    def attached(self, peer: str, name: str) -> Iterator[Entry]:
        self._pids[peer] = len(self._pids) + 1
        if self._workers and name not in self._workers:
            self._hidden.add(peer)
        else:
            yield self.named(self._pids[peer], name)

    def end_all(self, why: str, now_s: float) -> Iterator[Entry]:
        self._now_us = now_s * 1e6
        for peer in list(self._open):
            yield from self._end_all(peer, why)

    def named(self, pid: int, name: str) -> Entry:
        return {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}

    @property
    def _is_shown(self) -> bool:
        return self._now_us >= self._begin_us

    def _published(self, peer: str, message: messages.PolicyPublished) -> Iterator[Entry]:
        if self._is_shown and peer not in self._hidden:
            took_us = min(self._now_us, message.publish_s * 1e6)
            times = {"ts": self._now_us - took_us, "dur": took_us, "tid": 1}
            yield self._entry("X", peer, f"publish {message.policy_version}") | times

    def _counts_of(self, line: dict[str, object]) -> Iterator[Entry]:
        for name in COUNTED if self._is_shown else ():
            if isinstance(value := line.get(name), int | float):
                entry = {"ph": "C", "pid": RUN, "tid": 0, "ts": self._now_us, "name": name}
                yield entry | {"args": {"": float(value)}}

    def _entry(self, phase: str, peer: str, name: str) -> Entry:
        pid = self._pids.get(peer, RUN)
        return {"ph": phase, "pid": pid, "tid": 0, "ts": self._now_us, "name": name, "cat": name.split()[0]}

    def _begin(self, peer: str, key: Key, flows: Flows) -> Iterator[Entry]:
        if peer in self._hidden or key in self._open.setdefault(peer, {}):
            return
        name = " ".join(map(str, key))
        entry = self._entry("b", peer, name)
        # no id of a peer: with it, an owner of a key could take over that worker's link
        entry |= {"id": f"{entry['pid']} {name}", "flows": flows}
        self._open[peer][key] = entry
        if self._is_shown:
            yield entry
        else:
            self._early.add(entry["id"])

    def _end(self, peer: str, key: Key, more: Entry) -> Iterator[Entry]:
        begun = self._open.get(peer, {}).pop(key, None)
        if begun is None:
            return
        is_early = begun["id"] in self._early
        self._early.discard(begun["id"])
        if self._is_shown:
            if is_early:
                yield begun
            yield begun | {"ph": "e", "ts": self._now_us, "args": more}

    def _end_all(self, peer: str, why: str) -> Iterator[Entry]:
        for key in list(self._open.get(peer, {})):
            yield from self._end(peer, key, {"ended": why})


def _asked(message: Message) -> list[Key]:
    """The slices that a message to a worker begins."""
    match message:
        case messages.Route(group, member, attempt):
            return [("route", group, member, attempt)]
        case messages.Keep(attempts):
            return [("route", group, member, attempt) for group, member, attempt, _ in attempts]
        case messages.Score(group, attempt):
            return [("score", group, attempt)]
        case messages.Pull(policy_version):
            return [("pull", policy_version)]
        case messages.Train(train_version):
            return [("train", train_version + 1)]
        case messages.TrainAhead(train_version):
            return [("ahead of", train_version + 1)]
        case messages.SaveCheckpoint(policy_version):
            return [("checkpoint", policy_version)]
        case _:
            return []


def _called_off(message: Message) -> list[Key]:
    """The slices that a message to a worker ends: no answer follows."""
    match message:
        case messages.Abort(attempts):
            return [("route", group, member, attempt) for group, member, attempt in attempts]
        case _:
            return []


def _answered(message: Message) -> list[tuple[Key, Entry]]:
    """The slices that a worker's message ends, with their arguments."""
    match message:
        case messages.Generated(deltas=deltas):
            return [
                (("route", d.group, d.member, d.attempt), {"ended": d.ending, "tokens": d.start + d.count})
                for d in deltas
                if d.ending
            ]
        case messages.GenerationFailed(group, member, attempt, reason):
            return [(("route", group, member, attempt), {"ended": reason})]
        case messages.GroupScored(group, attempt, rewards, _):
            return [(("score", group, attempt), {"rewards": rewards})]
        case messages.ScoreFailed(group, attempt, reason):
            return [(("score", group, attempt), {"ended": reason})]
        case messages.Pulled(policy_version) | messages.PullFailed(policy_version):
            return [(("pull", policy_version), {})]
        case messages.TrainStepFinished(policy_version, _, metrics):
            return [(("train", policy_version), dict(metrics))]
        case messages.TrainedAhead(train_version):
            return [(("ahead of", train_version + 1), {})]
        case messages.CheckpointSaved(policy_version, path):
            return [(("checkpoint", policy_version), {"path": path})]
        case _:
            return []


def _flows(message: Message) -> Flows:
    """Arrows of the slice that a message begins: response to score, score to batch, batch to version."""
    match message:
        case messages.Route(group, member):
            return (("response", group, member),), ()
        case messages.Score(group, _, items):
            return (("group", group),), tuple(("response", group, item.member) for item in items)
        case messages.Train(train_version, items):
            groups = dict.fromkeys(item.group for item in items)
            return (("version", train_version + 1),), tuple(("group", group) for group in groups)
        case messages.Pull(policy_version):
            return (("version", policy_version),), ()
        case _:
            return (), ()


def write_trace(
    recording: Recording,
    path: str,
    *,
    begin_s: float = 0.0,
    end_s: float = inf,
    workers: Collection[str] = (),
) -> int:
    """Write the trace to a file and return how many slices it has.

    As Chrome's JSON if the file's name ends with .json, else as TrackEvents. An existing file is replaced
    only by a whole trace with at least one slice, and keeps its mode. Raises: OSError, RunError."""
    entries = trace(recording, begin_s=begin_s, end_s=end_s, workers=workers)
    write = _write_json if path.endswith(".json") else _write_packets
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.path.isfile(place):  # a pipe, or /dev/stdout
        return write(entries, place)
    with TemporaryDirectory(dir=os.path.dirname(place), prefix=".trace-") as folder:
        aside = os.path.join(folder, "trace")
        if slices := write(entries, aside):
            if os.path.exists(place):
                shutil.copymode(place, aside)
            os.replace(aside, place)
        return slices


def worker_names(recording: Recording) -> set[str]:
    """Names of all workers that attached, as far as known. Raises: RunError if the history is damaged."""
    events = (recorded.event for recorded in recording.events())
    return set(names_at_the_beginning(recording).values()) | {
        event.message.name
        for event in events
        if isinstance(event, Received) and isinstance(event.message, messages.Attach)
    }


def _write_packets(entries: Iterator[Entry], path: str) -> int:
    with open(path, "wb") as packets:
        return write_track_events(entries, packets)


def _write_json(entries: Iterator[Entry], path: str) -> int:
    slices = 0
    with open(path, "w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for count, entry in enumerate(entries):
            entry.pop("flows", None)
            slices += entry["ph"] in ("b", "X")
            file.write(f"{',' if count else ''}{json.dumps(entry)}\n")
        file.write("]}\n")
    return slices
