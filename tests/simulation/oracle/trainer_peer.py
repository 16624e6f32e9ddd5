"""A trainer: batches in their order, versions into a store that may outlive it, checkpoints onto a disk that
does.

Invariants: it takes orders in turn; a version is published, and a checkpoint complete, some time after the
order for it is done; what is not complete when it dies never was.
"""

from protocol import messages
from protocol.messages import Message
from tests.simulation.oracle.peer import Peer


class Store:
    """Policy versions that lie somewhere, and checkpoints."""

    def __init__(self) -> None:
        self.versions: set[int] = set()
        self.checkpoints: set[int] = set()


class TrainerPeer(Peer):
    """Makes version after version."""

    role = "trainer"
    version = 0
    _published_s = 0.0

    def ready(self) -> messages.Ready:
        """It goes on from the newest checkpoint, and announces what its forerunner has left."""
        store = self.host.store
        self.version = max(store.checkpoints, default=0)
        store.versions = {version for version in store.versions if version >= self.version}
        for version in sorted(store.versions - {self.version}):
            self.say(messages.PolicyPublished(version, "old", f"digest {version}", 1, 0.0))
        if not self.host.world.config.trainer.is_supervised:
            self._publish(self.version)
        return messages.Ready(self.version, 0, 0)

    def handle(self, message: Message) -> float:
        """Orders keep the next one waiting; what is written does not."""
        match message:
            case messages.Train():
                busy_s = self.host.world.train_s * self.rng.uniform(0.5, 1.5)
                self.later(busy_s, self._trained, self.id, message)
                return busy_s
            case messages.TrainAhead(train_version):
                busy_s = self.host.world.train_s * self.rng.uniform(0.1, 0.5)
                self.later(busy_s, self._trained_ahead, self.id, train_version)
                return busy_s
            case messages.SaveCheckpoint(policy_version):
                assert policy_version == self.version, f"asked to save {policy_version}, is at {self.version}"
                self.later(self.rng.uniform(0.05, 1.0), self._saved, self.id, policy_version)
            case messages.Retire(policy_version):
                self.host.store.versions.discard(policy_version)
            case messages.Serve():
                self.say(messages.Serving(f"tcp://{self.where}:1"))
            case _:
                raise AssertionError(f"a trainer was sent {message}")
        return 0.0

    def _trained(self, id: str, train: messages.Train) -> None:
        if id != self.id:
            return
        assert train.train_version == self.version, f"batch {train.train_version}, trainer at {self.version}"
        self.version += 1
        self.say(messages.TrainStepFinished(self.version, 0.1, (("loss", 0.5),)))
        if not train.is_published and "Publish" not in self.mute:
            self._publish(self.version)

    def _trained_ahead(self, id: str, train_version: int) -> None:
        if id == self.id:
            self.say(messages.TrainedAhead(train_version))

    def _publish(self, version: int) -> None:
        self._published_s = max(self._published_s, self.clock.now) + self.rng.uniform(0.01, 0.5)
        self.later(self._published_s - self.clock.now, self._published, self.id, version)

    def _published(self, id: str, version: int) -> None:
        if id == self.id:
            self.host.store.versions.add(version)
            self.say(messages.PolicyPublished(version, "new", f"digest {version}", 1, 0.1))

    def _saved(self, id: str, version: int) -> None:
        self.host.store.checkpoints.add(version)
        if id == self.id:
            self.say(messages.CheckpointSaved(version, f"step_{version}"))
