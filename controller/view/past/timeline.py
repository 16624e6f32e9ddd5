"""The timeline of a run: one lane per worker name, with its states over time, without gaps.

Invariants: a lane is in one state at a time, from its first word to the end of what is known; the trainer's
lane has what the next train step waits for, as the core's own accounts have it, so its shares are theirs; an
instance idles for one reason at a time.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from controller.core.commands import Forget, Send
from controller.core.core import Core
from controller.core.events import HeldOutRead, PeerFaulted, PromptsRead, Received, Restarted
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker
from controller.core.state.told import ToldTrainer
from controller.core.waiting_for import awaited
from controller.durability.replay import Replayed
from controller.history.shortened import names_in
from controller.history.story import named_groups
from controller.view.past.lanes import COLUMNS, SUMS, Lane, with_beside
from controller.view.past.predictions import Predictions
from controller.view.past.starts import Starts
from controller.view.past.trained_ages import TrainedAges
from protocol.messages import Attach, Generated

PLAIN = ("until_s", "versions", "prompts", "held_out", "read_until", "names", "_reason", "_first_steps")


class Timeline:
    """Follows a core through its history."""

    def __init__(self, core: Core) -> None:
        """`core`: where the history begins."""
        self.until_s = core.state.now
        self.versions: list[tuple[float, int]] = []
        """When each version became the newest."""
        self.prompts: list[tuple[int, int]] = []
        """First group of what was read, and the event that read it."""
        self.held_out: list[tuple[int, int]] = []
        """The same of held-out prompts, each evaluation once."""
        self.read_until = 0
        self._last_words: array[int] = array("q")  # by group: the last event that names it
        self._first_steps = core.state.steps
        self._steps: array[int] = array("q")  # events that finished a train step
        self.names = names_in(core)
        """Names of all workers that attached, by peer."""
        self._lanes: dict[tuple[str, str], Lane] = {}  # by role and name
        self._of_peer: dict[str, Lane] = {}
        self._idle: set[str] = set()  # peers of instances that wait for work
        self._prefilling: set[str] = set()  # of those without a token since they got work or weights
        self._reason = ""
        self.starts, self.ages, self.predictions = Starts(core), TrainedAges(), Predictions(core)
        for peer in core.state.registry.workers:
            self._look(core, peer)

    def take(self, turn: Replayed, core: Core) -> None:
        """Take a step of the core."""
        self.until_s = now = turn.recorded.now
        event = turn.recorded.event
        if isinstance(event, PromptsRead):
            self.prompts.append((event.first_group, turn.recorded.number))
            self.read_until = event.first_group + event.count
        if isinstance(event, HeldOutRead) and event.first_group > max(self.held_out, default=(-1, 0))[0]:
            self.held_out.append((event.first_group, turn.recorded.number))
        if isinstance(event, Received) and isinstance(event.message, Attach):
            self.names[event.peer] = event.message.name
        if isinstance(event, Received) and isinstance(event.message, Generated):
            self._count(event.peer, event.message)
        while self._first_steps + len(self._steps) < core.state.steps:
            self._steps.append(turn.recorded.number)
        for group in named_groups(event):
            self._note(group, turn.recorded.number)
        # of another life of the controller nobody is left but those who come back
        for peer in [*self._of_peer] if isinstance(event, Restarted) else _touched(turn):
            self._look(core, peer)
        trainer = core.state.registry.trainer()
        if trainer is not None:
            cause = awaited(core)
            kind = cause if cause in ("training", "paused") else f"waits: {cause}"
            detail = with_beside(core.state.steps, *_beside(trainer))
            self._lane(trainer.peer, trainer.name, "trainer").enter(now, kind, detail)
        if self._idle:
            self._tell_idle(core)
        self.starts.take(core)
        self.ages.take(turn)
        self.predictions.take(turn, core)
        newest = core.state.versions.newest
        if newest is not None and (not self.versions or self.versions[-1][1] != newest.policy_version):
            self.versions.append((now, newest.policy_version))

    def as_plain(self) -> dict[str, Any]:
        """The whole state, as plain values for msgpack."""
        lanes = [
            (
                lane.name,
                lane.role,
                [getattr(lane, name) for name in SUMS],
                *(getattr(lane, name).tobytes() for name in COLUMNS),
            )
            for lane in self._lanes.values()
        ]
        rest = {name: getattr(self, name) for name in PLAIN}
        return rest | {
            "lanes": lanes,
            "places": {peer: (lane.role, lane.name) for peer, lane in self._of_peer.items()},
            "idle": sorted(self._idle),
            "prefilling": sorted(self._prefilling),
            "words": self._last_words.tobytes(),
            "steps": self._steps.tobytes(),
            "starts": self.starts.as_plain(),
            "ages": self.ages.as_plain(),
            "predictions": self.predictions.as_plain(),
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any], core: Core) -> "Timeline":
        """As it was when `as_plain` gave this, of a core as it stood then."""
        made = cls(core)
        made._lanes.clear()
        for name, role, sums, *columns in plain["lanes"]:
            lane = made._lanes[role, name] = Lane(name, role, **dict(zip(SUMS, sums, strict=True)))
            for column, data in zip(COLUMNS, columns, strict=True):
                getattr(lane, column).frombytes(data)
        made._of_peer = {peer: made._lanes[role, name] for peer, (role, name) in plain["places"].items()}
        made._idle, made._prefilling = set(plain["idle"]), set(plain["prefilling"])
        for name in PLAIN:
            setattr(made, name, plain[name])
        made.versions = [(now, version) for now, version in made.versions]
        made.prompts = [(group, number) for group, number in made.prompts]
        made.held_out = [(group, number) for group, number in made.held_out]
        made._last_words, made._steps = array("q", plain["words"]), array("q", plain["steps"])
        made.starts.take_over(plain["starts"])
        made.ages.take_over(plain["ages"])
        made.predictions.take_over(plain["predictions"])
        return made

    def event_of_step(self, step: int) -> int | None:
        """The event that finished this train step; None if it is not known (yet)."""
        place = step - self._first_steps - 1
        return self._steps[place] if 0 <= place < len(self._steps) else None

    def last_word(self, group: int) -> int | None:
        """The last event up to here that names this group; None of one that nobody has named."""
        return (self._last_words[group] or None) if group < len(self._last_words) else None

    def before(self, group: int) -> int | None:
        """The event before the one that read the prompt of this group; None if that is not known (yet)."""
        is_held_out = group >= FIRST_EVALUATION_GROUP
        read = self.held_out if is_held_out else self.prompts
        place = bisect_right(read, (group, 1 << 62)) - 1
        is_known = place >= 0 and (is_held_out or place + 1 < len(read) or group < self.read_until)
        return read[place][1] - 1 if is_known else None

    def _count(self, peer: str, message: Generated) -> None:
        if (lane := self._of_peer.get(peer)) is not None:
            tokens = sum(message.counts)
            lane.generated += tokens
            if tokens:
                self._prefilling.discard(peer)

    def _note(self, group: int, number: int) -> None:
        if group < self.read_until:  # else it is held out, and found by the story, or somebody's invention
            missing = group + 1 - len(self._last_words)
            if missing > 0:
                self._last_words.extend([0] * missing)
            self._last_words[group] = number

    def lanes(self) -> list[Lane]:
        """All of them: trainer, rollout, reward and agent workers, in the order of their names."""
        order = {"trainer": 0, "rollout": 1, "reward": 2, "agent": 3}
        return sorted(self._lanes.values(), key=lambda lane: (order.get(lane.role, 9), _natural(lane.name)))

    def _look(self, core: Core, peer: str) -> None:
        """Enter the worker's current state into its lane."""
        now, worker = core.state.now, core.state.registry.workers.get(peer)
        self._idle.discard(peer)
        if worker is None:
            self._prefilling.discard(peer)
            if (lane := self._of_peer.pop(peer, None)) is not None:
                lane.carry(now, 0.0)
                lane.enter(now, "gone")
            return
        if worker.role == "trainer":
            return
        lane = self._lane(peer, worker.name, worker.role)
        if not worker.ready:
            lane.enter(now, "starting")
        elif isinstance(worker, Instance):
            self._look_at_instance(core, worker, lane)
        elif isinstance(worker, TextWorker):
            lane.enter(now, "scoring" if worker.scoring else "encoding" if worker.encoding else IDLE)
        elif isinstance(worker, AgentWorker):
            lane.enter(now, "episodes" if worker.episodes else IDLE)

    def _look_at_instance(self, core: Core, instance: Instance, lane: Lane) -> None:
        lane.carry(core.state.now, min(1.0, len(instance.running) / max(1, instance.capacity)))
        if instance.pulling is not None:
            lane.enter(core.state.now, "pulling", instance.pulling)
        elif instance.running:
            if lane.state != "generating":
                self._prefilling.add(instance.peer)
            beside = ("prefill",) if instance.peer in self._prefilling else ()
            lane.enter(core.state.now, "generating", with_beside(max(0, instance.policy_version), *beside))
        else:
            self._idle.add(instance.peer)
            lane.enter(core.state.now, idle_reason(core))  # the others hear of it in `_tell_idle`

    def _tell_idle(self, core: Core) -> None:
        """Why those that wait do so, when that changes."""
        reason = idle_reason(core)
        if reason != self._reason:
            self._reason = reason
            for peer in self._idle:
                self._of_peer[peer].enter(core.state.now, reason)

    def _lane(self, peer: str, name: str, role: str) -> Lane:
        lane = self._of_peer.get(peer)
        if lane is None:
            lane = self._of_peer[peer] = self._lanes.setdefault((role, name), Lane(name, role))
        return lane


def _beside(trainer: Worker) -> Iterator[str]:
    """What the trainer does beside a train step, or while the next one waits."""
    told = trainer.told
    if isinstance(told, ToldTrainer):
        if any(told.owes(version) for version in told.may_publish):
            yield "publishing"
        if told.saving:
            yield "saving"
        if told.ahead:
            yield "ahead"


IDLE = "idle: nothing to do"


def idle_reason(core: Core) -> str:
    """Why an instance without work has none: which rule keeps the next prompt from starting."""
    state = core.state
    newest = state.versions.newest
    if state.paused is not None:
        return "paused"
    if newest is None:
        return "idle: weights"
    if state.queue:
        return "idle: routing"  # what waits is kept for other instances
    if not state.fresh:
        return "idle: data"
    if state.ledger.headroom(newest.policy_version) <= 0:
        return "idle: bound"
    return "idle: cap"  # there are prompts and places: the rule of admission says no


def _touched(turn: Replayed) -> dict[str, None]:
    """Peers whose state the event or its commands may have changed, each once and in order."""
    event = turn.recorded.event
    found: dict[str, None] = {}
    if isinstance(event, Received | PeerFaulted):
        found[event.peer] = None
    for command in turn.commands:
        if isinstance(command, Send | Forget):
            found[command.peer] = None
    return found


def _natural(name: str) -> tuple[str, int]:
    """A sort key of names by which rollout-2 comes before rollout-10."""
    head, _, tail = name.rpartition("-")
    return (head, int(tail)) if tail.isdecimal() else (name, -1)
