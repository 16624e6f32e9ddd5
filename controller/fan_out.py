"""From where an instance on another host than the trainer's gets a policy version: a tree per version.

Invariants: an instance is told its sources nearest first, and the last is the trainer, which has the version;
every source before it has the version, or pulls it from those that follow and hands on what it has; at
most `weights.fan_out` instances have the same first source, so the trainer's link carries a version that
often, however many hosts there are; of one host, one instance pulls at a time, and the others find what it
got.
"""

from collections.abc import Iterable

from controller.policy_versions import Published
from controller.registry import Instance, Worker
from controller.state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Serve

TRAINER = ""  # the root of a tree: the trainer, whichever process that is


class FanOut:
    """The sources of each version."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.parents: dict[int, dict[PeerId, PeerId]] = {}
        """version -> puller -> the first source that it was given."""

    def reachable(self, instances: Iterable[Instance], version: Published) -> list[Instance]:
        """Those that could get this version now; the others are asked for what is missing."""
        pulling = {i.host for i in self.state.registry.instances() if i.pulling is not None}
        found = []
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

    def sources(self, instance: Instance, version: Published) -> tuple[str, ...] | None:
        """Where a reachable instance gets a version, nearest first; () where it lies already; None if another
        of its host has begun to pull."""
        if instance.host == version.host:
            return ()
        if any(i.host == instance.host and i.pulling is not None for i in self.state.registry.instances()):
            return None
        tree = self.parents.setdefault(version.policy_version, {})
        tree.pop(instance.peer, None)  # a pull that failed, and is told again
        tree[instance.peer] = self._choose(tree, instance.peer, version.policy_version)
        return self._path(tree, tree[instance.peer])

    def on_serving(self, worker: Worker, endpoint: str) -> None:
        """A worker says where it hands versions on: somebody may have waited for that."""
        worker.endpoint = endpoint
        for instance in self.state.registry.instances():
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

    def _choose(self, tree: dict[PeerId, PeerId], peer: PeerId, policy_version: int) -> PeerId:
        """The source nearest to the trainer that has room for one more, and does not depend on this one."""
        children, most = self._children(tree, policy_version), self.state.config.weights.fan_out
        for source in (TRAINER, *tree):
            has_it = source == TRAINER or self._has(source, policy_version)
            if has_it and children.get(source, 0) < most and peer not in self._ancestors(tree, source):
                return source
        raise AssertionError("a source without children has room")

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
