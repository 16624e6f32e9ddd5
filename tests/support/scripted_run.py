"""A run of scripted workers in one process, without sockets: codec, journal, payload and core are real.

Invariants: what a worker says goes through the codec as on the wire, and who breaks the protocol is dropped
as the server drops it; the core is checked after every turn; virtual time moves only when nothing else can
happen, and then no further than to the core's next deadline; equal seeds give equal runs.
"""

import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core import commands, events
from controller.core.commands import Command
from controller.core.core import Core
from controller.core.events import Event, PeerFaulted, Received, WorkerExited
from controller.durability.release import release
from controller.durability.store import Durability, Store
from controller.host.going_back import write_way_back
from controller.host.resume import read_past
from controller.host.stepper import Stepper
from protocol.errors import RemoteError
from protocol.messages import (
    Attach,
    Beat,
    Close,
    Control,
    Drain,
    DrainWorker,
    Message,
    Reattach,
    Role,
    Welcome,
)
from protocol.wire.codec import Packet, decode, encode
from tests.support.scripted import (
    VOCABULARY,
    Disk,
    Frames,
    Said,
    Scripted,
    ScriptedReward,
    ScriptedRollout,
    ScriptedTrainer,
)

HANG_S = 800.0  # of virtual time in which nobody says anything but that he is alive; the longest limit is 780
MAX_EVENTS = 30_000
TURN = 4  # events at most
HELD_OUT = 2  # prompts
LOOK = 20  # events between two looks at the whole run, as a person takes them
Make = Callable[[str, Role], Scripted]


class Hang(Exception):
    """The run does not come to an end."""


def config_of(*, steps: int = 3, is_local: bool = False, **sections: Any) -> Config:
    """A small run. `is_local`: the controller starts the workers; else they come by themselves."""
    tree: dict[str, dict[str, Any]] = {
        "run": {"steps": steps},
        "rollout": {
            "instances": 2 if is_local else 0, "group_size": 2, "max_response_tokens": 10,
            "max_prompt_tokens": 8, "max_running": 8,
        },
        "reward": {"workers": 1 if is_local else 0},
        "trainer": {"batch_groups": 2, "lr": 0.1, "local": is_local, "checkpoint_steps": 2},
        "staleness": {"max_staleness": 1, "mu": 0.0},
    }  # fmt: skip
    for section, keys in sections.items():
        tree[section] = {**tree.get(section, {}), **keys}
    return Config.model_validate(tree)


def honest(config: Config, disk: Disk) -> Make:
    """Workers without a lie."""

    is_supervised = config.trainer.is_supervised
    most = config.rollout.max_response_tokens

    def make(name: str, role: Role) -> Scripted:
        if role == "rollout":
            return ScriptedRollout(name, most=most)
        if role == "reward":
            return ScriptedReward(name, supervised=most if is_supervised else 0)
        return ScriptedTrainer(name, disk, is_supervised=is_supervised)

    return make


class ScriptedRun:
    """One life of a controller, and its workers; on a file with a past it goes on with that."""

    def __init__(
        self, path: Path, config: Config, make: Make, *, seed: int = 0, durability: Durability = "process"
    ) -> None:
        self.config, self.make = config, make
        self.warnings: list[str] = []
        self.lines: list[dict[str, object]] = []
        self.end: commands.Finish | None = None
        self.now, self.events = 0.0, 0
        self.inbox: deque[tuple[Event, Frames]] = deque()
        self.workers: dict[str, Scripted] = {}  # by peer
        self.heard_s = 0.0  # when somebody said more than that he is alive
        self._beaten_s = 0.0
        self._attached: set[str] = set()  # peers
        self._read = 0
        past = read_past(path.parent, config) if path.exists() else None
        self.store = Store(path, durability=durability)
        if past is None:
            core = Core(config, load_strategies(config))
            self.stepper = Stepper(self.store, core, on_skip=self.warnings.append)
            with self.store.transaction():
                for name, value in facts_of(config).items():
                    self.store.put_fact(name, value)
            self.inbox.append((events.Started(), ()))
        else:
            self.now, self._read = past.now, past.core.scoring.read_until
            with self.store.transaction():
                write_way_back(self.store, past, path.parent)
                self.store.keep_only(past.core.groups_with_payload())
            self.stepper = Stepper(self.store, past.core, on_skip=self.warnings.append)
            self.inbox.append((events.Restarted(config.model_dump_json(), "", ()), ()))
            self.inbox += [(fault, ()) for fault in past.faults]
        self._rng = random.Random(f"{seed}/{self.core.state.epoch if past else 0}")

    @property
    def core(self) -> Core:
        """As it stands."""
        return self.stepper.core

    def attach(self, name: str, role: Role) -> str:
        """A worker comes; returns its peer."""
        peer = f"{self._rng.getrandbits(128):032x}"
        self.workers[peer] = self.make(name, role)
        self.say(peer, [(self.workers[peer].attach(), ())])
        return peer

    def say(self, peer: str, said: Said) -> None:
        """A worker says this; what the codec refuses is its fault, and it is dropped."""
        for message, frames in said:
            if not isinstance(message, Beat):
                self.heard_s = self.now
            try:
                packet = decode(encode(Packet(1, 0, message, frames)), vocabulary=VOCABULARY)
                if isinstance(message, Attach | DrainWorker | Control) and peer in self._attached:
                    raise RemoteError(f"A worker must not say {type(message).__name__} here.")
            except RemoteError as error:
                known = self.workers.pop(peer, None)
                if known is not None:
                    self.inbox.append((PeerFaulted(peer, str(error)), ()))
                return
            self._attached.add(peer)
            self.inbox.append((Received(peer, packet.message), packet.frames))

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Until the run is over, or so. Raises: Hang; whatever the core or the store raises."""
        while self.end is None and not until():
            if self.now >= self._beaten_s + self.config.controller.lease_s / 4:
                self._beat()
            if self.inbox:
                size = self._rng.randrange(1, TURN + 1)
                self.turn([self.inbox.popleft() for _ in range(min(size, len(self.inbox)))])
            elif not self._work():
                self._wait()

    def turn(self, batch: list[tuple[Event, Frames]]) -> list[Command]:
        """One turn of the controller, with all that follows at once."""
        self.now += 0.01
        self.events += len(batch)
        if self.events > MAX_EVENTS:
            raise Hang(f"{self.events} events; the run waits for {self.core.snapshot().waiting_for}")
        wanted = self.stepper.turn(self.now, batch)
        self.look_over()
        if self.events % LOOK < TURN:
            self.core.snapshot(), self.core.summary()
        for command in wanted:
            self._execute(command)
        return wanted

    def look_over(self) -> None:
        """The check of a real run, which comes once a minute there."""
        self.core.check()
        self.stepper.passed(self.stepper.last)

    def close(self) -> None:
        """The controller ends, or is killed: the file is what is left."""
        with self.store.transaction():
            self.stepper.write_rest()
        self.store.close()

    # -- workers -----------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """Let everybody go on by itself; whether anybody did."""
        for peer, worker in list(self.workers.items()):
            self.say(peer, worker.work())
        return bool(self.inbox)

    def _wait(self) -> None:
        """Everybody is alive; time goes on to the next deadline."""
        deadline = self.core.next_deadline()
        if deadline is None or self.now - self.heard_s > HANG_S:
            waiting, due = self.core.snapshot().waiting_for, self.now - self.heard_s
            raise Hang(f"Nobody has said anything for {due:.0f} s; the run waits for {waiting}.")
        self.now = max(self.now, min(deadline, self.now + self.config.controller.lease_s / 4))
        self._beat()
        if self.now >= deadline:
            self.inbox.append((events.Tick(), ()))

    def _beat(self) -> None:
        """Everybody is alive, however busy the controller is with others."""
        self._beaten_s = self.now
        self.inbox += [(Received(peer, Beat()), ()) for peer in self.workers]

    def _execute(self, command: Command) -> None:
        match command:
            case commands.Send(peer, message):
                frames = self.store.fetch(message)
                self._hear(peer, message, frames)
            case commands.Spawn(name, role):
                self.attach(name, role)
            case commands.Forget(peer, name):
                worker = self.workers.pop(peer, None)
                if name in self.core.state.registry.local and worker is not None:
                    self.inbox.append((WorkerExited(name, worker.role, -9, ""), ()))
            case commands.ReadPrompts(count):
                rows = tuple(json.dumps({"prompt": self._read + n}).encode() for n in range(count))
                self.inbox.append((events.PromptsRead(self._read, count, False), rows))
                self._read += count
            case commands.ReadHeldOut(first):
                rows = tuple(json.dumps({"prompt": f"held out {n}"}).encode() for n in range(HELD_OUT))
                self.inbox.append((events.HeldOutRead(first, ("set",) * HELD_OUT, "digest"), rows))
            case commands.DropPayload(groups):
                self.stepper.doom(groups)
            case commands.ReportStep(line):
                self.lines.append(line)
            case commands.Warn(text):
                self.warnings.append(text)
            case commands.Finish():
                self.end = command
            case _:
                pass

    def _hear(self, peer: str, message: Message, frames: Frames) -> None:
        worker = self.workers.get(peer)
        if worker is None:
            return
        match message:
            case Welcome():
                self.say(peer, worker.begin())
            case Close() | Reattach() | Drain():
                del self.workers[peer]
                if worker.name in self.core.state.registry.local:
                    self.inbox.append((WorkerExited(worker.name, worker.role, 1, ""), ()))
            case _:
                self.say(peer, worker.answer(message, frames))


def facts_of(config: Config) -> dict[str, str]:
    """What a journal begins with."""
    made = {"config": config.model_dump_json(), "run_dir": "", "import_paths": "[]"}
    return made | {"release": json.dumps(release())}


def trained_groups(disk: Disk) -> list[int]:
    """All groups that were trained, in order. Raises: AssertionError if one is in two batches."""
    groups = sorted(group for batch in disk.batches.values() for group in batch)
    assert len(groups) == len(set(groups)), "a prompt was trained twice"
    return groups
