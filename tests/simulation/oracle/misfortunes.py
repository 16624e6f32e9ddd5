"""What is done to a world while it runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from controller.core.events import Received
from protocol.messages import Detach, DrainWorker
from tests.simulation.oracle.peer import Peer
from tests.simulation.oracle.rollout_peer import RolloutPeer
from tests.simulation.oracle.world import Machine

if TYPE_CHECKING:
    from tests.simulation.oracle.host import Host


class Misfortunes:
    """Strikes when the world says so."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.links = 0
        self.drained: set[str] = set()
        """Names of local workers that are not started again."""
        self._operators = 0
        self._started = Counter[str]()

    def plan(self) -> None:
        """Enter all that will be done."""
        for time_s, kind in self.host.world.faults:
            self.host.clock.at(time_s, getattr(self, kind))
        if self.host.world.stop_s is not None:
            self.host.clock.at(self.host.world.stop_s, self.host.stop)

    def mute_of(self, role: str) -> frozenset[str]:
        """Kinds of messages that the process of this role that starts now never answers."""
        number, self._started[role] = self._started[role], self._started[role] + 1
        return frozenset(kind for n, of, kind in self.host.world.mutes if (n, of) == (number, role))

    def kill_rollout(self) -> None:
        """A rollout worker dies."""
        self._kill("rollout")

    def kill_reward(self) -> None:
        """A reward worker dies."""
        self._kill("reward")

    def kill_trainer(self) -> None:
        """The trainer dies; what it has published may be there."""
        self._kill("trainer")

    def lose_versions(self) -> None:
        """The trainer dies with all that it has published."""
        self.host.store.versions.clear()
        self._kill("trainer")

    def freeze(self) -> None:
        """A process stands still, for less than its lease or for more."""
        if (peer := self._any(self.host.alive())) is not None:
            lease_s = self.host.world.config.controller.lease_s
            peer.frozen_until = self.host.clock.now + lease_s * self.host.rng.uniform(0.1, 2.5)

    def restart(self) -> None:
        """The controller is killed between two events, or after one that it has written."""
        if self.host.rng.random() < 0.3:
            self.host.tear()
            self.host.clock.after(self.host.rng.uniform(0.01, 0.3), self._start_again)
        else:
            self._start_again()

    def leave(self) -> None:
        """A worker from outside hands back what it has, and goes."""
        peer = self._any([p for p in self.host.alive("rollout") if not p.is_local])
        if isinstance(peer, RolloutPeer) and peer.hands is None:
            peer._hand_back([attempt.key for attempt in peer.attempts])
            peer.say(Detach("its job is over"))
            peer.later(0.1, self.host.left, peer)

    def drain(self) -> None:
        """An operator has a worker leave."""
        peer = self._any([p for p in self.host.alive() if p.role != "trainer" and p.is_ready])
        if peer is not None:
            self._operators += 1
            self.drained.add(peer.name)
            self.host.step(Received(f"operator {self._operators}", DrainWorker(peer.name)))

    def join(self) -> None:
        """One more machine comes."""
        rng, models = self.host.rng, self.host.world.machines
        model = rng.choice(models)
        name = f"guest{self.links}"
        self.host.attach_machine(
            Machine(
                name, rng.choice(["here", name]), False, model.capacity, model.kv_tokens, model.tokens_per_s
            )
        )

    def _start_again(self) -> None:
        if not self.host.core.state.finished:
            self.host.restart()

    def _kill(self, role: str) -> None:
        if (peer := self._any(self.host.alive(role))) is not None:  # type: ignore[arg-type]
            self.host.kill(peer)

    def _any(self, peers: list[Peer]) -> Peer | None:
        return self.host.rng.choice(peers) if peers else None
