"""Makes the core raise at a chosen line of a chosen event, in states taken from simulated runs."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from test_evaluations import evaluated
from test_simulated_runs import config
from test_streamed_runs import streamed

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import Command
from controller.core.core import Core
from controller.core.events import Event, PeerFaulted, Received, Restarted, Tick
from controller.core.state.told import ToldInstance, ToldTextWorker
from controller.durability.image import classes
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack
from controller.durability.image.thawer import thaw
from controller.durability.recording import Recording
from controller.durability.store import Store
from controller.host.resumed_run import derive
from controller.host.stepper import Frames, Stepper
from protocol import messages
from protocol.messages import Attach
from tests.support.fault_host import Plagues
from tests.support.fault_sweep import FAULTS
from tests.support.scripted_run import facts_of
from tests.support.survivors import SurvivingSimulation

BEHIND = 2  # events of the history that follow the one at fault in its turn
BEFORE = 3  # that the journal has behind its snapshot
FILES = {str(Path(str(module.__file__))): module.__name__ for module in classes.MODULES}
Line = tuple[str, int]


class Injected(Exception):
    """Raised in the middle of the core."""


@dataclass(frozen=True, slots=True)
class Target:
    """A line, and a word that comes to it."""

    line: Line
    event: Received
    image: bytes  # of the core, BEFORE events earlier
    settings: Config
    around: tuple[tuple[float, Event], ...]  # those events, the one of the history in its place, and BEHIND

    def __str__(self) -> str:
        return f"{FILES[self.line[0]]}:{self.line[1]} ({type(self.event.message).__name__})"


def histories() -> Iterator[tuple[Config, list[tuple[float, Event]]]]:
    """Events of runs under faults: with evaluations, with batches in parts, with workers that come back."""
    plagues = Plagues(controller_deaths=0.006, trainer_deaths=0.004)
    bases = [
        (evaluated(config(steps=5, instances=2, migration="benefit", spare_responses=1)), 2, FAULTS),
        (streamed(max_staleness=1, stragglers="truncate"), 1, None),
        (evaluated(streamed(max_staleness=2, filter="zero_variance", keep_kv=True), exact=False), 0, FAULTS),
        (config(steps=5, spare_groups=1, guard=True, synchronization="gain", pace=0.85), 1, FAULTS),
    ]
    for seed, (settings, remote, faults) in enumerate(bases):
        patient = settings.controller.model_copy(update={"respawns": 500})
        settings = settings.model_copy(update={"controller": patient})
        simulation = SurvivingSimulation(
            settings, seed=seed, prompts=200, plagues=plagues, remote=remote, faults=faults, check_every=0
        )
        simulation.run_through()
        yield settings, simulation.history


def probes(core: Core) -> list[Received]:
    """What honest workers might say at this moment that simulated ones never do."""
    found: list[Received] = []
    for worker in core.state.registry.workers.values():
        told, peer = worker.told, worker.peer
        if worker.is_absent or not worker.ready:
            continue
        found += [Received(peer, messages.Detach("preempted")), Received(peer, messages.WorkerFailed("no"))]
        if isinstance(told, ToldInstance):
            failed = [messages.GenerationFailed(*key, "out of memory") for key in list(told.given)[:1]]
            found += [Received(peer, message) for message in failed]
            if told.pulling is not None:
                found.append(Received(peer, messages.PullFailed(told.pulling.policy_version, "it is gone")))
        elif isinstance(told, ToldTextWorker):
            scored = [messages.ScoreFailed(*key, "it hung", "{}") for key in list(told.scores)[:1]]
            refused = [tuple((group, "too long") for group in groups) for groups in told.encodes[:1]]
            found += [Received(peer, message) for message in scored]
            found += [Received(peer, messages.PromptsEncoded((), groups)) for groups in refused]
    found.append(Received("f" * 32, Attach("rollout", "late", 1, "elsewhere")))
    found.append(Received("e" * 32, messages.DrainWorker("rollout-0")))
    return found


def lines_of(core: Core, now: float, event: Event) -> list[Line]:
    """The lines of the core that an event comes to, in order."""
    found: dict[Line, None] = {}

    def local(frame: FrameType, kind: str, _: Any) -> Any:
        if kind == "line":
            found[frame.f_code.co_filename, frame.f_lineno] = None
        return local

    sys.settrace(lambda frame, kind, _: local if frame.f_code.co_filename in FILES else None)
    try:
        core.step(now, event)
    finally:
        sys.settrace(None)
    return list(found)


def raising_at(line: Line, step: Callable[[], Any]) -> Any:
    """`step`, with an exception at the first time that it comes to this line."""

    def local(frame: FrameType, kind: str, _: Any) -> Any:
        if kind == "line" and frame.f_lineno == line[1]:
            sys.settrace(None)
            raise Injected(f"at {line[1]}")
        return local

    sys.settrace(lambda frame, kind, _: local if frame.f_code.co_filename == line[0] else None)
    try:
        return step()
    finally:
        sys.settrace(None)


def targets(settings: Config, history: list[tuple[float, Event]], *, stride: int) -> Iterator["Target"]:
    """Lines that words of workers come to, each once, from every `stride`th event."""
    core, place, known = Core(settings, load_strategies(settings)), 0, set[Line]()
    for goal in range(BEFORE, len(history), stride):
        while place < goal - BEFORE:
            core.step(*history[place])
            place += 1
        image = Freezer().freeze(core)
        while place < goal:
            core.step(*history[place])
            place += 1
        now, event = history[goal]
        events = [event] if isinstance(event, Received) else []
        for one in [*events, *(probes(core) if goal % (5 * stride) < stride else [])]:
            twin = thaw(Freezer().freeze(core), load_strategies(settings))
            for line in lines_of(twin, now, one):
                if line not in known:
                    known.add(line)
                    around = tuple(history[goal - BEFORE : goal + 1 + BEHIND])
                    yield Target(line, one, image, settings, around)


def strike(target: Target) -> None:
    """Raise there, in a turn with others. Raises: AssertionError if anything but that word is missing."""
    if not _strike(target, [Tick()]):  # then only the first event of a turn comes there: time has passed
        assert _strike(target, []), f"{target} was not reached"


def _strike(target: Target, before: list[Event]) -> bool:
    store = Store(":memory:")
    facts = facts_of(target.settings)
    with store.transaction():
        for name, value in facts.items():
            store.put_fact(name, value)
        store.put_snapshot(0, 0.0, facts["release"], pack(target.image))
    stepper = Struck(store, target)
    for now, event in target.around[:BEFORE]:
        stepper.turn(now, [(event, ())])
    now = target.around[BEFORE][0]
    behind = [event for _, event in target.around[BEFORE + 1 :] if not isinstance(event, Restarted)]
    stepper.turn(now, [(event, ()) for event in (*before, target.event, *behind)])
    if stepper.is_struck:
        stepper.check()
    return stepper.is_struck


class Struck(Stepper):
    """A stepper whose core raises once."""

    def __init__(self, store: Store, target: Target) -> None:
        core = thaw(target.image, load_strategies(target.settings))
        self.said: list[str] = []
        super().__init__(store, core, on_skip=self.said.append)
        self._target, self._before = target, b""
        self.is_struck = self._is_stepped = self._is_apart = False

    def turn(self, now: float, batch: list[tuple[Event, Frames]]) -> list[Command]:
        """As ever, but for the one event; a core that fails on it fails among others, too."""
        step = Core.step

        def struck(core: Core, now: float, event: Event, *, decides: bool = True) -> list[Command]:
            if event is not self._target.event or self._is_stepped:
                return step(core, now, event, decides=decides)
            if any(self._joined) and not self._is_apart:
                raise Injected("among others")
            self._before = Freezer().freeze(core)
            self._is_stepped = True
            try:
                return raising_at(self._target.line, lambda: step(core, now, event))
            except Injected:
                self.is_struck = True
                raise

        with patch.object(Core, "step", struck):
            return super().turn(now, batch)

    def _take_apart(self) -> None:
        super()._take_apart()
        self._is_apart = True

    def _pass_over(self, number: int, more: list[int], reason: str) -> None:
        super()._pass_over(number, more, reason)
        assert Freezer().freeze(self.core) == self._before, "the core is not what it was before the event"

    def check(self) -> None:
        """The word is skipped, its author is closed, and the journal gives the same core."""
        assert len(self.said) == 1, f"{self._target} was not passed over: {self.said}"
        self.core.check()
        with self._store.transaction():
            self.write_rest()
        recording = Recording.live(self._store)
        author = self._target.event.peer
        faults = [r.event for r in recording.events() if isinstance(r.event, PeerFaulted)]
        assert [fault.peer for fault in faults if "The core failed on its" in fault.reason] == [author]
        assert author not in self.core.state.registry.workers
        again = derive(recording).core  # raises if a fingerprint differs
        assert Freezer().freeze(again) == Freezer().freeze(self.core)
