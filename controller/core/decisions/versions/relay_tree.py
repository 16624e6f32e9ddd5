"""Relay tree: which peers a remote instance downloads a policy version from.

Invariants: an instance is told its sources nearest first, and the last is the trainer, which has the version;
every source before it has the version, or pulls it from those that follow and hands on what it has; at
most `weights.fan_out` instances have the same first source, so the trainer's link carries a version that
often, however many hosts there are; of one host, one instance pulls at a time, and the others find what it
got.
"""

from collections.abc import Iterable, Iterator

from controller.core.state.policy_versions import Published
from controller.core.state.registry import Instance, Worker
from controller.core.state.run_state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Serve

LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")
TRAINER = ""  # the root of a tree: the trainer, whichever process that is


class RelayTree:
    """The sources of each version."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.parents: dict[int, dict[PeerId, PeerId]] = {}
        """version -> puller -> the first source that it was given."""

    def reachable(self, instances: Iterable[Instance], version: Published) -> list[Instance]:
        """Those that could get this version now; the others are asked for what is missing."""
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

        Sources are listed nearest first; () where the version lies already. Of one host, only one instance
        may pull, until it has answered. Each of them counts as a source of the next, so the caller is to make
        it pull.
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
                tree.pop(instance.peer, None)  # a pull that failed, and is told again
                source = next(s for s in room.nearest() if instance.peer not in self._ancestors(tree, s))
                tree[instance.peer] = source
                room.take(instance.peer, source)
                yield instance, self._path(tree, source)

    def on_serving(self, worker: Worker, endpoint: str) -> None:
        """A worker says where it hands versions on: somebody may have waited for that."""
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
        """A trainer is ready, so it can be asked where it hands versions on: other hosts may have waited."""
        for instance in self.state.registry.instances():
            if instance.host != trainer.host:
                self.state.registry.changed[instance.peer] = None

    def on_answer(self, instance: Instance) -> None:
        """A pull is over: others of its host may have waited for it."""
        if self._is_remote(instance):
            for other in self.state.registry.instances():
                if other.host == instance.host:
                    self.state.registry.changed[other.peer] = None

    def retire(self, policy_version: int) -> None:
        """Nobody needs the version any more: its copies on other hosts go too."""
        self.parents.pop(policy_version, None)
        for instance in self.state.registry.instances():
            if instance.endpoint:
                self.state.send(instance.peer, Retire(policy_version))

    def forget(self) -> None:
        """No version is visible any more."""
        self.parents.clear()

    def check(self) -> None:
        """The invariants above, of those that are attached."""
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
        """How many a source feeds, or has fed."""
        children: dict[PeerId, int] = {}
        for peer, parent in tree.items():
            children[parent] = children.get(parent, 0) + self._has(peer, policy_version)
        return children

    def _ancestors(self, tree: dict[PeerId, PeerId], source: PeerId) -> list[PeerId]:
        """A source, and those that it depends on, without the trainer."""
        path: list[PeerId] = []
        while source != TRAINER and source not in path:
            path.append(source)
            source = tree.get(source, TRAINER)
        return path

    def _has(self, peer: PeerId, policy_version: int) -> bool:
        worker = self.state.registry.workers.get(peer)
        return isinstance(worker, Instance) and policy_version in (worker.pulling, worker.policy_version)

    def _path(self, tree: dict[PeerId, PeerId], source: PeerId) -> tuple[str, ...]:
        """Endpoints from a source to the trainer, without those that are gone."""
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
    """The sources of one version, nearest to the trainer first, with room for one more.

    One that is full is not looked at again, so choosing for all instances takes about as many looks as there
    are instances.
    """

    def __init__(self, sources: list[PeerId], children: dict[PeerId, int], most: int) -> None:
        self._sources, self._children, self._most = sources, children, most
        self._full = 0  # so many of the first are

    def nearest(self) -> Iterator[PeerId]:
        """Those with room."""
        while self._is_full(self._sources[self._full]):
            self._full += 1
        for index in range(self._full, len(self._sources)):
            if not self._is_full(self._sources[index]):
                yield self._sources[index]

    def take(self, peer: PeerId, source: PeerId) -> None:
        """The peer pulls from this source, and becomes one."""
        self._children[source] = self._children.get(source, 0) + 1
        self._sources.append(peer)

    def _is_full(self, source: PeerId) -> bool:
        return self._children.get(source, 0) >= self._most
