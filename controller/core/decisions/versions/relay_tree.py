"""Relay tree: which peers a remote instance downloads a policy version from.

Invariants: an instance is told its sources nearest first; the last is the trainer, which has the version, and
every other source has it, or pulls it from those that follow and relays what it has; at most
`weights.fan_out` instances have the same first source, so the trainer's link carries a version that often,
however many hosts there are; of one host one instance pulls at a time, and the others find its copy.
"""

from collections.abc import Iterable, Iterator

from controller.core.state.policy_versions import Published
from controller.core.state.registry import Instance, Worker
from controller.core.state.run_state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Serve

LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")
TRAINER = ""  # the root of a tree: the trainer, whichever process it is


class RelayTree:
    """The tree of sources of each version."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.parents: dict[int, dict[PeerId, PeerId]] = {}
        """version -> pulling instance -> its first source."""

    def reachable(self, instances: Iterable[Instance], version: Published) -> list[Instance]:
        """The instances that could pull this version now; the others are asked for their endpoints."""
        pulling = {i.host for i in self.state.registry.instances() if i.pulling is not None}
        found: list[Instance] = []
        for instance in instances:
            if instance.host == version.host:
                found.append(instance)
                continue
            self._ask(instance)
            if trainer := self.state.registry.trainer():
                self._ask(trainer)
                if instance.endpoint and trainer.endpoint and instance.host not in pulling:
                    found.append(instance)
        return found

    def sources(
        self, instances: Iterable[Instance], version: Published
    ) -> Iterator[tuple[Instance, tuple[str, ...]]]:
        """Choose the reachable instances that may pull the version now, each with its sources.

        Sources are listed nearest first; () on the host where the version lies. Of one host, one instance may
        pull at a time. Each instance counts as a source for the next one, so the caller has to make it pull.
        """
        pulling = {i.host for i in self.state.registry.instances() if i.pulling is not None}
        room: _Room | None = None
        for instance in instances:
            if instance.host == version.host:
                yield instance, ()
            elif instance.host not in pulling:
                tree = self.parents.setdefault(version.policy_version, {})
                room = room or self._room(tree, version.policy_version)
                pulling.add(instance.host)
                tree.pop(instance.peer, None)  # of a pull that failed and is repeated
                source = next(s for s in room.nearest() if instance.peer not in self._ancestors(tree, s))
                tree[instance.peer] = source
                room.take(instance.peer, source)
                yield instance, self._path(tree, source)

    def on_serving(self, worker: Worker, endpoint: str) -> None:
        """A worker reports its endpoint for versions; instances may have waited for it."""
        worker.endpoint = endpoint
        others = sorted({i.host for i in self.state.registry.instances() if i.host != worker.host})
        if endpoint.startswith(LOOPBACK) and others and self.state.config.controller.keys:
            self.state.warn_once(
                f"loopback {worker.name}",
                f"{worker.name} on {worker.host} hands policy versions on at {endpoint}, which only its own "
                f"machine reaches; if {', '.join(others[:3])} are others, they cannot get them. Say at which "
                "address they reach it: weights.host (docs/weights.md).",
            )
        for instance in self.state.registry.instances():
            self.state.registry.changed[instance.peer] = None

    def on_trainer(self, trainer: Worker) -> None:
        """A trainer is ready and can be asked for its endpoint; instances on other hosts may have waited."""
        for instance in self.state.registry.instances():
            if instance.host != trainer.host:
                self.state.registry.changed[instance.peer] = None

    def on_answer(self, instance: Instance) -> None:
        """A pull has ended; other instances of its host may have waited for it."""
        if self._is_remote(instance):
            for other in self.state.registry.instances():
                if other.host == instance.host:
                    self.state.registry.changed[other.peer] = None

    def retire(self, policy_version: int) -> None:
        """Free the copies of a version on the hosts that relay it."""
        self.parents.pop(policy_version, None)
        for instance in self.state.registry.instances():
            if instance.endpoint:
                self.state.send(instance.peer, Retire(policy_version))

    def forget(self) -> None:
        """Forget all trees: no version is visible any more."""
        self.parents.clear()

    def check(self) -> None:
        """Assert the invariants above for attached instances."""
        most = self.state.config.weights.fan_out
        for version, tree in self.parents.items():
            crowded = {peer: n for peer, n in self._children(tree, version).items() if n > most}
            assert not crowded, f"version {version}: {crowded} children; at most {most} are allowed"
            for peer in tree:
                assert peer not in self._ancestors(tree, tree[peer]), f"{peer} is a source of its own"

    def _room(self, tree: dict[PeerId, PeerId], policy_version: int) -> "_Room":
        have_it = [TRAINER, *(peer for peer in tree if self._has(peer, policy_version))]
        return _Room(have_it, self._children(tree, policy_version), self.state.config.weights.fan_out)

    def _children(self, tree: dict[PeerId, PeerId], policy_version: int) -> dict[PeerId, int]:
        """Number of instances that each source feeds or has fed."""
        children: dict[PeerId, int] = {}
        for peer, parent in tree.items():
            children[parent] = children.get(parent, 0) + self._has(peer, policy_version)
        return children

    def _ancestors(self, tree: dict[PeerId, PeerId], source: PeerId) -> list[PeerId]:
        """A source and the sources that it depends on, without the trainer."""
        path: list[PeerId] = []
        while source != TRAINER and source not in path:
            path.append(source)
            source = tree.get(source, TRAINER)
        return path

    def _has(self, peer: PeerId, policy_version: int) -> bool:
        worker = self.state.registry.workers.get(peer)
        return isinstance(worker, Instance) and policy_version in (worker.pulling, worker.policy_version)

    def _path(self, tree: dict[PeerId, PeerId], source: PeerId) -> tuple[str, ...]:
        """Endpoints from a source up to the trainer, without instances that are gone."""
        workers, trainer = self.state.registry.workers, self.state.registry.trainer()
        assert trainer is not None, "an instance is reachable only while there is a trainer"
        there = [workers[peer].endpoint for peer in self._ancestors(tree, source) if peer in workers]
        return (*there, trainer.endpoint)

    def _is_remote(self, instance: Instance) -> bool:
        newest = self.state.versions.newest
        return newest is not None and instance.host != newest.host

    def _ask(self, worker: Worker) -> None:
        if not worker.is_asked:
            worker.is_asked = True
            self.state.send(worker.peer, Serve())


class _Room:
    """The sources of one version with room for one more child, nearest to the trainer first.

    Full sources at the front are skipped for good, so choosing for all instances takes linear time.
    """

    def __init__(self, sources: list[PeerId], children: dict[PeerId, int], most: int) -> None:
        self._sources, self._children, self._most = sources, children, most
        self._full = 0  # number of leading sources that are full

    def nearest(self) -> Iterator[PeerId]:
        """Sources with room."""
        while self._is_full(self._sources[self._full]):
            self._full += 1
        for index in range(self._full, len(self._sources)):
            if not self._is_full(self._sources[index]):
                yield self._sources[index]

    def take(self, peer: PeerId, source: PeerId) -> None:
        """A peer pulls from this source, and becomes a source itself."""
        self._children[source] = self._children.get(source, 0) + 1
        self._sources.append(peer)

    def _is_full(self, source: PeerId) -> bool:
        return self._children.get(source, 0) >= self._most
