"""A host of the core in a world: virtual time, links, processes that die, a journal that survives.

Invariants: it shares no code with the simulator; all that is random comes from the world's seed; a controller
that is killed comes back from its journal, and wants then what it wanted before.
"""

import random
from collections.abc import Callable
from hashlib import blake2b

from controller.config.strategies import load_strategies
from controller.core import commands
from controller.core.core import Core
from controller.core.events import (
    Event,
    HeldOutRead,
    PromptsRead,
    Received,
    Restarted,
    Started,
    StopRequested,
    Tick,
    WorkerExited,
)
from controller.core.liveness import check_liveness
from controller.durability.fingerprint import fingerprint
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from protocol import messages
from protocol.messages import Message, Role
from tests.simulation.oracle.books import Books
from tests.simulation.oracle.clock import Clock
from tests.simulation.oracle.misfortunes import Misfortunes
from tests.simulation.oracle.peer import Peer
from tests.simulation.oracle.rollout_peer import Hands, RolloutPeer
from tests.simulation.oracle.stalls import Stalls
from tests.simulation.oracle.text_peer import TextPeer
from tests.simulation.oracle.trainer_peer import Store, TrainerPeer
from tests.simulation.oracle.world import PROMPT_TOKENS, Machine, World

MOST_S, MOST_EVENTS = 3000.0, 60_000  # that a run may take


class Endless(AssertionError):
    """The run does not end."""


class Host:
    """One run of one world."""

    def __init__(self, world: World, *, tell: Callable[[str], None] | None = None) -> None:
        self.world, self._tell = world, tell
        self.clock, self.rng = Clock(), random.Random(f"host/{world.seed}")
        self.books, self.stalls, self.store = Books(world), Stalls(world), Store()
        self.core = Core(world.config, load_strategies(world.config))
        self.peers: dict[str, Peer] = {}
        self.hands: dict[str, Hands] = {}  # last words of local workers
        self.journal: list[tuple[float, Event, bytes]] = []
        self.events = self.restarts = self.epoch = 0
        self.misfortunes = Misfortunes(self)
        self._is_torn = False  # the next commands are lost with the controller
        self._next_prompt = 0
        self._tick_s: float | None = None

    def run(self) -> commands.Finish:
        """To the end. Raises: AssertionError if anything is wrong on the way, or there is no end."""
        self._enter_remote()
        self.misfortunes.plan()
        self.step(Started())
        while not self.core.state.finished:
            self.clock.turn()
            if self.clock.now > MOST_S or self.events > MOST_EVENTS:
                waiting = self.core.snapshot().waiting_for
                raise Endless(
                    f"no end after {self.clock.now:.0f} s, {self.events} events: waits for {waiting}"
                )
        self.books.check_end(self.core)
        summary = self.core.summary()
        return commands.Finish(bool(summary["is_success"]), str(summary["reason"]))

    # -- the core ---------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """One event, journalled first."""
        if self.core.state.finished:
            return
        now = self.clock.now
        if self._tell is not None:
            self._tell(f"{now:9.3f} {event}")
        self._check_believed(event)
        self.books.heard(event)
        wanted = self.core.step(now, event)
        self.core.check()
        check_liveness(self.core, grace_s=0.0)
        self.events += 1
        self.journal.append((now, event, fingerprint(wanted)))
        for command in wanted:
            if isinstance(command, commands.ReportStep):
                self.books.reported(command.metrics)
        if self._is_torn:
            return
        for command in wanted:
            if self._tell is not None:
                self._tell(f"          -> {command}")
            self._execute(command)
        self.stalls.look(self.core, now)
        deadline = self.core.next_deadline()
        if deadline is not None and (self._tick_s is None or deadline < self._tick_s):
            self._tick_s = deadline
            self.clock.at(deadline, self._tick, deadline)

    def _check_believed(self, event: Event) -> None:
        """All workers here are honest, so none of their words may be refused, however late it comes."""
        if not isinstance(event, Received):
            return
        worker = self.core.state.registry.workers.get(event.peer)
        reason = self.core.plausibility.objection(worker, event.message) if worker is not None else None
        assert reason is None, f"{event.peer} is honest and was refused: {reason}"

    def _tick(self, deadline: float) -> None:
        if deadline == self._tick_s:
            self._tick_s = None
            self.step(Tick())

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.Send(peer, message):
                self.books.sent(peer, message)
                if peer in self.peers:
                    self.peers[peer].send(message)
            case commands.Spawn(name, role, delay_s):
                self.clock.after(delay_s + 0.05, self._spawn, name, role, self.epoch)
            case commands.ReadPrompts(count):
                self.clock.after(self.rng.uniform(0.0, 0.3), self._read, count, self.epoch)
            case commands.ReadHeldOut(first_group):
                sources = ("test",) * self.world.held_out
                self.clock.after(
                    0.01, self._read_held_out, HeldOutRead(first_group, sources, "digest"), self.epoch
                )
            case commands.Forget(_, name):
                for peer in self.local(name):
                    self.kill(peer)

    def _read(self, count: int, epoch: int) -> None:
        if epoch != self.epoch:
            return
        first, most = self._next_prompt, self.world.prompts
        count = count if most is None else min(count, most - first)
        self._next_prompt += count
        self.step(PromptsRead(first, count, most is not None and self._next_prompt >= most))

    def _read_held_out(self, event: HeldOutRead, epoch: int) -> None:
        if epoch == self.epoch:
            self.step(event)

    def restart(self) -> None:
        """The controller is killed, and started again from its journal or from an image of itself."""
        self.epoch += 1
        self.restarts += 1
        self._is_torn, self._tick_s = False, None
        self.core = self._from_image() if self.rng.random() < 0.3 else self._from_journal()
        self._next_prompt = self.core.scoring.read_until
        for peer in list(self.peers.values()):
            self._cut(peer)
        self.step(Restarted(self.world.config.model_dump_json(), "", ()))

    def tear(self) -> None:
        """The controller is killed after it has written the next event, before it has done anything."""
        self._is_torn = True

    def _from_image(self) -> Core:
        return thaw(Freezer().freeze(self.core), load_strategies(self.world.config))

    def _from_journal(self) -> Core:
        core = Core(self.world.config, load_strategies(self.world.config))
        for now, event, wanted in self.journal:
            assert fingerprint(core.step(now, event)) == wanted, f"replay of {event} wants something else"
        return core

    def _cut(self, peer: Peer) -> None:
        """The link of a peer is gone with the controller."""
        if not peer.is_alive:
            return
        del self.peers[peer.id]
        may_return = self.world.config.controller.reattach_s > 0
        if isinstance(peer, RolloutPeer) and peer.is_local:
            hands = peer.last_words()
            self.hands.pop(peer.name, None)
            if hands is not None and self.rng.random() < 0.7:
                self.hands[peer.name] = hands
            peer.kill()
        elif isinstance(peer, RolloutPeer) and may_return:
            peer.cut()
            peer.later(self.rng.uniform(0.2, 6.0), peer.attach)
        else:
            peer.kill()
            if not peer.is_local:
                self.replace(peer)

    # -- processes --------------------------------------------------------------------------------------

    def enter(self, peer: Peer) -> str:
        """A link begins: its name."""
        self.misfortunes.links += 1
        id = f"{self.misfortunes.links:04x} {peer.name}"
        self.peers[id] = peer
        return id

    def arrived(self, id: str, message: Message) -> None:
        """A message of a peer is here."""
        self.step(Received(id, message))

    def alive(self, role: Role | None = None) -> list[Peer]:
        """Processes that are there, in the order in which they came."""
        return [peer for peer in self.peers.values() if peer.is_alive and role in (None, peer.role)]

    def local(self, name: str) -> list[Peer]:
        """The local process of this name, if there is one."""
        return [peer for peer in self.alive() if peer.is_local and peer.name == name]

    def kill(self, peer: Peer, *, code: int = -9) -> None:
        """A process ends; who was drained is replaced by somebody outside."""
        peer.kill(says_more=code == 0 or self.rng.random() < 0.5)
        if peer.is_local:
            exited = WorkerExited(peer.name, peer.role, code, "")
            self.clock.after(self.rng.uniform(0.0, 0.2), self._exited, exited, self.epoch)
        if not peer.is_local or peer.name in self.misfortunes.drained:
            self.replace(peer)

    def closed(self, peer: Peer, *, is_fault: bool) -> None:
        """The controller has told a peer to go."""
        self.kill(peer, code=int(is_fault))

    def left(self, peer: Peer) -> None:
        """A peer has left in good order."""
        if peer.is_alive:
            self.kill(peer, code=0)

    def replace(self, peer: Peer) -> None:
        """A machine outside gets a new process after a while."""
        self.clock.after(self.rng.uniform(0.5, 10.0), self._attach_again, peer)

    def attach_machine(self, machine: Machine) -> None:
        """A rollout worker comes from outside."""
        RolloutPeer(self, machine).attach()

    def _attach_again(self, peer: Peer) -> None:
        if isinstance(peer, RolloutPeer):
            number = len(self.peers)
            name = f"node{number}" if peer.is_local else peer.name
            machine = Machine(name, peer.machine.host, False, peer.machine.capacity, peer.machine.kv_tokens,
                              peer.machine.tokens_per_s)  # fmt: skip
            self.attach_machine(machine)
        else:
            type(peer)(self, peer.name, where=peer.where, is_local=False).attach()

    def _exited(self, event: WorkerExited, epoch: int) -> None:
        if epoch == self.epoch:
            self.step(event)

    def _spawn(self, name: str, role: Role, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if role == "rollout":
            machine = next(m for m in self.world.machines if m.name == name)
            RolloutPeer(self, machine, self.hands.pop(name, None)).attach()
        else:
            (TextPeer if role == "reward" else TrainerPeer)(self, name, where="here", is_local=True).attach()

    def _enter_remote(self) -> None:
        for machine in self.world.machines:
            if not machine.is_local:
                self.clock.after(self.rng.uniform(0, 5), self.attach_machine, machine)
        if not self.world.config.trainer.local:
            trainer = TrainerPeer(self, "torchrun", where=self.rng.choice(["here", "there"]), is_local=False)
            self.clock.after(self.rng.uniform(0, 5), trainer.attach)

    # -- the world --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Somebody has had enough."""
        self.step(StopRequested("enough"))

    def late_s(self) -> float:
        """By which a message comes late."""
        return self.rng.uniform(0, self.world.late_s) if self.rng.random() < self.world.late_share else 0.0

    def fails(self, kind: str, scale: float = 1.0) -> bool:
        """Whether this time it goes wrong."""
        share = self.world.failing[kind]
        return share > 0 and self.rng.random() < share * scale

    def can_pull(self, pull: messages.Pull) -> bool:
        """Whether the version can still be had."""
        return pull.policy_version in self.store.versions

    def prompt_tokens(self, group: int) -> int:
        """Length of a prompt."""
        return 1 + self._hash("prompt", group) % PROMPT_TOKENS

    def target(self, group: int, member: int) -> int:
        """Length that a response wants to have, which may be more than it may have."""
        longest = self.world.config.rollout.max_response_tokens
        return 1 + self._hash("response", group, member) % (longest + longest // 5 + 1)

    def mute_of(self, role: Role) -> frozenset[str]:
        """What the process of this role that starts now takes and never answers."""
        return self.misfortunes.mute_of(role)

    def _hash(self, *words: object) -> int:
        text = repr((self.world.seed, *words)).encode()
        return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")
