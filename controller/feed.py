"""Which batch the trainer works on, and which batches are kept so that another trainer can be fed them again.

Invariants: a batch is kept, items and payload, until a complete checkpoint covers the version that it made;
the trainer gets batches in the order of versions, one at a time, each the next one from where it stands; a
version that the run has made before is made again only by a trainer that stands behind it. What was sent
ahead of a batch counts for the trainer that got it alone: its successor gets the whole.
"""

from collections import deque
from typing import NamedTuple

from controller.commands import DropPayload
from controller.groups import Group
from controller.state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Train, TrainAhead, TrainItem

MAX_KEPT = 200  # batches; then a checkpoint is due whatever `trainer.checkpoint_steps` says
UNSURE_RETIRED = 16  # a trainer that died may not have freed the last of the versions that it was told to


class Batch(NamedTuple):
    """What one policy version was, or is being, made of."""

    train_version: int
    groups: tuple[int, ...]
    items: tuple[TrainItem, ...]


class Feed:
    """The trainer's place among the batches."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.saved_version = -1
        """Newest version that a complete checkpoint holds."""
        self.kept: dict[int, Batch] = {}  # train_version -> batch, oldest first
        self._held: int | None = None  # version that the trainer holds; None without a trainer
        self._fed: int | None = None  # train_version of the batch that it works on
        self.ahead: list[int] = []
        """Groups of the next batch that the trainer has been sent."""
        self.is_ahead = False
        """Whether it works on some of them, with none of the batch's other work in hand."""
        self._retired: deque[int] = deque(maxlen=UNSURE_RETIRED)

    @property
    def is_working(self) -> bool:
        """Whether the trainer has a batch in hand, or groups ahead of one."""
        return self.making is not None

    @property
    def making(self) -> int | None:
        """The version that the trainer makes now."""
        if self.is_ahead and self._held is not None:
            return self._held + 1
        return None if self._fed is None else self._fed + 1

    @property
    def is_behind(self) -> bool:
        """Whether the trainer is still making versions again that were lost with the one before it."""
        return self._held is not None and self._held < self.state.steps

    @property
    def is_save_due(self) -> bool:
        """Whether the newest version ought to be saved before the next batch."""
        every, steps = self.state.config.trainer.checkpoint_steps, self.state.steps
        is_turn = bool(every) and steps % every == 0
        return (is_turn or len(self.kept) >= MAX_KEPT) and self.saved_version < steps > 0

    def attach(self, peer: PeerId, policy_version: int) -> None:
        """A trainer is ready that holds this version: feed it what it has missed. Ends the run if it cannot
        get from there to where the run is."""
        steps, oldest = self.state.steps, min(self.kept, default=self.state.steps)
        if not min(oldest, steps) <= policy_version <= steps:
            self.state.end(
                f"The trainer began at version {policy_version}; the run has made {steps} and keeps the "
                f"batches from version {oldest} on, so expected {oldest} to {steps}. A checkpoint was "
                "removed or comes from another run: put the newest back into `checkpoints`, and start again.",
                is_success=False,
            )
            return
        self.lose()
        self._held = policy_version
        if policy_version:  # it came out of a complete checkpoint, of which we may not have heard
            self.cover(policy_version)
        for version in self._retired:
            # what it holds it publishes first, and where nothing newer is visible everybody pulls that
            is_first = version == policy_version and self.state.versions.newest is None
            if not is_first and self.state.versions.get(version) is None:
                self.state.send(peer, Retire(version))
        self.go_on(peer)

    def lose(self) -> None:
        """There is no trainer any more."""
        self._held = self._fed = None
        self.ahead, self.is_ahead = [], False

    def send_ahead(self, groups: list[Group], peer: PeerId) -> None:
        """Let the trainer begin on these, which are sure to be in the next batch. One such order at a time:
        those that come meanwhile are packed together."""
        assert self._held is not None, "nobody is there to begin"
        assert not self.is_ahead, "it has begun on others"
        self.ahead += [group.id for group in groups]
        self.is_ahead = True
        items = tuple(item for group in groups for item in group.contribute().items)
        self.state.send(peer, TrainAhead(self._held, items))

    def on_ahead(self, train_version: int) -> None:
        """The trainer has done what it was sent ahead of this batch."""
        self.is_ahead = self.is_ahead and train_version != self._held

    def add(self, batch: Batch, peer: PeerId) -> None:
        """The next batch was consumed, and goes to the trainer."""
        assert self._held == batch.train_version, f"batch {batch.train_version}, trainer at {self._held}"
        self.kept[batch.train_version] = batch
        self.go_on(peer)

    def go_on(self, peer: PeerId) -> None:
        """Send the batch that follows from where the trainer stands, if it was consumed already."""
        batch = None if self._held is None else self.kept.get(self._held)
        if batch is None:
            return
        newest = self.state.versions.newest
        # the newest is published again: it may be gone with the trainer that made it
        is_published = newest is not None and newest.policy_version > batch.train_version + 1
        is_published |= self.state.config.trainer.is_supervised  # nobody would read it
        self._fed = batch.train_version
        ahead = sum(item.group in self.ahead for item in batch.items) if self.ahead else 0
        self.state.send(peer, Train(batch.train_version, batch.items, is_published, ahead))
        self.ahead, self.is_ahead = [], False

    def finish(self, policy_version: int) -> bool:
        """Whether the trainer was asked to make this version; it holds it from now on."""
        if self._fed is None or policy_version != self._fed + 1:
            return False
        self._held, self._fed = policy_version, None
        return True

    def cover(self, policy_version: int) -> None:
        """A complete checkpoint holds this version: what made it is not needed any more."""
        self.saved_version = max(self.saved_version, policy_version)
        covered = [self.kept.pop(version) for version in list(self.kept) if version < policy_version]
        if covered:
            self.state.emit(DropPayload(tuple(group for batch in covered for group in batch.groups)))

    def retire(self, peer: PeerId, version: int) -> None:
        """Tell the trainer to free a version; its successor is told again."""
        self._retired.append(version)
        self.state.send(peer, Retire(version))
