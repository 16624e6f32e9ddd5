"""The life of one group as bars: where each response ran, when, and which version gave it how many tokens.

Invariant: all of it is re-derived from the journal, as the story is, and at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from controller.core.commands import Forget, Send
from controller.core.core import Core
from controller.core.events import Received
from controller.durability.recording import Recording
from controller.durability.replay import Replayed
from controller.history.story import Beginning, beginning, told_turns
from protocol import messages
from protocol.ids import PeerId

MOST_LINES = 2_000  # of a story
FIELDS = b"\x94"  # how MessagePack begins the fields of a TrainStepFinished


@dataclass(slots=True)
class Bar:
    """One attempt at a response on one instance."""

    member: int
    attempt: int
    worker: str
    begin_s: float
    end_s: float | None = None  # None while it runs
    ending: str = ""
    pieces: list[tuple[float, int, int]] = field(default_factory=list)  # (second, policy version, tokens)


@dataclass(slots=True)
class Life:
    """Attempts, story and deadline of a group."""

    bars: list[Bar] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)  # (second, what happened to the group)
    lines: list[str] = field(default_factory=list)  # its story
    # the batch of this version is the last that may take it; None if it never started, or if any may
    due: int | None = None
    due_s: float | None = None  # when that batch was trained on; None if it has not been


class LifeReader:
    """Reads the life of one group out of the journal, a part at a time."""

    def __init__(self, recording: Recording, group: int, begin: Beginning | None = None) -> None:
        """`begin`: a moment before the group, by default the nearest snapshot.

        Raises: RunError if nothing names the group.
        """
        begin = begin or beginning(recording, group)
        self._recording, self._after = recording, begin.number
        self._watcher = _Watcher(group, begin.names, begin.core)
        self._turns = told_turns(recording, group, begin)
        self.number = begin.number
        """The last event that it has read."""
        self.last = recording.last
        """The newest event that it knows of."""

    def read(self, is_late: Callable[[], bool] = lambda: False) -> Life | None:
        """The whole life; None if it `is_late()` before that, and who asks again gets nearer.

        Raises: RunError if nothing names the group, or the journal is damaged.
        """
        life = self._watcher.life
        for turn, lines in self._turns:
            self._watcher.turn(turn)
            self.number = turn.recorded.number
            life.lines += lines[: MOST_LINES - len(life.lines)]
            if is_late():
                return None
        if life.due is not None:
            life.due_s = _made_s(self._recording, life.due + 1, self._after)
        return life


def _made_s(recording: Recording, version: int, after: int) -> float | None:
    """The second at which a train step made this version, behind an event; None if none has."""
    mark = bytes((messages.TrainStepFinished.tag,)) + FIELDS + msgpack.packb(version)
    for _, now_s, event, *_ in recording.events_with(mark, after=after):
        match event:
            case Received(message=messages.TrainStepFinished(policy_version=made)) if made == version:
                return now_s
            case _:  # the same bytes by chance
                pass
    return None


def as_json(life: Life) -> dict[str, Any]:
    """The life as JSON for the page."""
    bars = [{name: getattr(bar, name) for name in Bar.__slots__} for bar in life.bars]
    rest = {"marks": life.marks, "lines": life.lines, "due": life.due, "due_s": life.due_s}
    return {"bars": bars, **rest}


class _Watcher:
    def __init__(self, group: int, names: dict[PeerId, str], core: Core) -> None:
        """`core`: the one that the story steps."""
        self.life = Life()
        self._core = core
        self._group = group
        self._names = dict(names)
        self._open: dict[tuple[int, int], Bar] = {}

    def turn(self, turn: Replayed) -> None:
        now, event = turn.recorded.now, turn.recorded.event
        if self._group in (ledger := self._core.state.ledger) and ledger.is_strict:
            self.life.due = ledger.deadline(self._group)
        if isinstance(event, Received):
            if isinstance(event.message, messages.Attach):
                self._names[event.peer] = event.message.name
            self._hear(now, event.message)
        for command in turn.commands:
            if isinstance(command, Send):
                self._tell(now, command)
            elif isinstance(command, Forget):
                self._lose(now)

    def _hear(self, now: float, message: messages.Message) -> None:
        match message:
            case messages.Generated(deltas=deltas):
                for delta in deltas:
                    if delta.group == self._group:
                        self._progress(now, delta)
            case messages.GroupScored() if message.group == self._group:
                self.life.marks.append((now, "scored"))
            case messages.GenerationFailed() if message.group == self._group:
                self._close(now, message.member, message.attempt, "failed")
            case messages.TrainStepFinished() if self.life.marks and self.life.marks[-1][1] == "trained on":
                self.life.marks.append((now, f"version {message.policy_version} made"))
            case _:
                pass

    def _tell(self, now: float, command: Send) -> None:
        match command.message:
            case messages.Route() if command.message.group == self._group:
                route = command.message
                bar = Bar(route.member, route.attempt, self._names.get(command.peer, command.peer), now)
                self._open[route.member, route.attempt] = bar
                self.life.bars.append(bar)
            case messages.Abort(attempts):
                for group, member, attempt in attempts:
                    if group == self._group:
                        self._close(now, member, attempt, "aborted")
            case messages.Score() if command.message.group == self._group:
                self.life.marks.append((now, "sent to be scored"))
            case messages.Train(_, items):
                if any(item.group == self._group for item in items):
                    self.life.marks.append((now, "trained on"))
            case _:
                pass

    def _progress(self, now: float, delta: messages.Delta) -> None:
        bar = self._open.get((delta.member, delta.attempt))
        if bar is None:
            return
        if delta.count:
            bar.pieces.append((now, delta.policy_version, delta.count))
        if delta.ending:
            self._close(now, delta.member, delta.attempt, delta.ending)

    def _lose(self, now: float) -> None:
        """A worker is gone: what ran there, and goes on nowhere else, has ended with it."""
        group = self._core.state.groups.get(self._group)
        members = () if group is None else group.members
        running = {(one.id.member, one.attempt) for one in members if one.state == "running"}
        for member, attempt in self._open.keys() - running:
            self._close(now, member, attempt, "lost")

    def _close(self, now: float, member: int, attempt: int, ending: str) -> None:
        bar = self._open.pop((member, attempt), None)
        if bar is not None:
            bar.end_s, bar.ending = now, ending
