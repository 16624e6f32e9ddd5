"""Which batch the trainer works on, and which batches are kept so that another trainer can be fed them again.

Invariants: a batch is kept, items and payload, until the oldest checkpoint to which a trainer may fall back
covers the version that it made, so that any of them will do if newer ones are damaged; the trainer gets
batches in the order of versions, one at a time, each the next one from where it stands; a version that the
run has made before is made again only by a trainer that stands behind it. What was sent ahead of a batch
counts for the trainer that got it alone: its successor gets the whole.
"""

from controller.core.commands import DropPayload, Warn
from controller.core.state.batches.contributions import Batch
from controller.core.state.groups import Group
from controller.core.state.kept_samples import KeptGroup, asked_groups, kept_groups
from controller.core.state.run_state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Train, TrainAhead

MAX_UNSAVED = 200  # batches; then a checkpoint is due whatever `trainer.checkpoint_steps` says
MAX_COVERED = 200  # batches kept for a fall back: a checkpoint further behind the newest is none


class TrainerBatches:
    """The trainer's place among the batches."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.saved_version = -1
        """Newest version that a complete checkpoint holds."""
        self._saved: list[int] = []  # versions of the checkpoints that the trainer keeps, oldest first
        self._held: int | None = None  # version that the trainer holds; None without a trainer
        self._fed: int | None = None  # train_version of the batch that it works on
        self.ahead: list[int] = []
        """Groups of the next batch that the trainer has been sent."""
        self.is_ahead = False
        """Whether it works on some of them, with none of the batch's other work in hand."""
        self._kept_of = (-1, 0)  # train_version and number of the groups that `_kept` is of
        self._kept: tuple[KeptGroup, ...] = ()

    @property
    def making(self) -> int | None:
        """The version that the trainer makes now, of a batch or of streamed groups; None if it makes none."""
        if self.is_ahead and self._held is not None:
            return self._held + 1
        return None if self._fed is None else self._fed + 1

    @property
    def oldest_start(self) -> int:
        """Oldest version from which a trainer can be brought to where the run is, by the kept batches."""
        return min([*self.state.batches, self.state.steps])

    @property
    def is_behind(self) -> bool:
        """Whether the trainer is still making versions again that were lost with the one before it."""
        return self._held is not None and self._held < self.state.steps

    @property
    def is_save_due(self) -> bool:
        """Whether the newest version ought to be saved before the next batch."""
        every, steps = self.state.config.trainer.checkpoint_steps, self.state.steps
        is_turn = bool(every) and steps % every == 0
        is_much = steps - max(self.saved_version, 0) >= MAX_UNSAVED
        is_wanted = is_turn or is_much or self.state.is_save_wanted
        return is_wanted and self.saved_version < steps > 0

    def attach(self, peer: PeerId, policy_version: int) -> None:
        """Feed a trainer that is ready, and holds this version, the batches that it has missed.

        Ends the run if they do not lead from that version to where the run is.
        """
        steps, oldest = self.state.steps, self.oldest_start
        if not oldest <= policy_version <= steps:
            self.state.end(_no_way_on(policy_version, oldest=oldest, steps=steps), is_success=False)
            return
        self.lose()
        self._held = policy_version
        if policy_version < self.saved_version:
            self._fall_back(policy_version)
        if policy_version:  # it came out of a complete checkpoint, of which we may not have heard
            self.cover(policy_version)
        for version in self.state.versions.freed:
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
        """Let the trainer begin on groups that are certain to be in the next batch.

        One such order is out at a time: groups that become certain meanwhile are packed together.
        """
        assert self._held is not None, "nobody is there to begin"
        assert not self.is_ahead, "it has begun on others"
        self.ahead += [group.id for group in groups]
        self.is_ahead = True
        items = tuple(item for group in groups for item in group.contribute().items)
        self.state.send(peer, TrainAhead(self._held, items, self.state.config.is_cut))

    def on_ahead(self, train_version: int) -> None:
        """The trainer has done what it was sent ahead of this batch."""
        self.is_ahead = self.is_ahead and train_version != self._held

    def add(self, batch: Batch, peer: PeerId) -> None:
        """The next batch was consumed, and goes to the trainer."""
        assert self._held == batch.train_version, f"batch {batch.train_version}, trainer at {self._held}"
        self.state.batches[batch.train_version] = batch
        self.go_on(peer)

    def go_on(self, peer: PeerId) -> None:
        """Send the batch that follows from where the trainer stands, if it was consumed already."""
        batch = None if self._held is None else self.state.batches.get(self._held)
        if batch is None:
            return
        newest = self.state.versions.newest
        # the newest is published again: it may be gone with the trainer that made it
        is_published = newest is not None and newest.policy_version > batch.train_version + 1
        is_published |= self.state.config.trainer.is_supervised  # nobody would read it
        self._fed = batch.train_version
        ahead = sum(item.group in self.ahead for item in batch.items) if self.ahead else 0
        is_cut = self.state.config.is_cut
        order = Train(batch.train_version, batch.items, is_published, ahead, is_cut, self._samples_of(batch))
        self.state.send(peer, order)
        self.ahead, self.is_ahead = [], False

    def _samples_of(self, batch: Batch) -> tuple[int, ...]:
        """Groups that the trainer tells of; none of a batch whose step was accounted before."""
        return asked_groups(self.kept(batch)) if batch.train_version >= self.state.steps else ()

    def kept(self, batch: Batch) -> tuple[KeptGroup, ...]:
        """What people may read of a batch whose step is not accounted: chosen once, when it is consumed.

        Only a run that was taken up again with another number of samples chooses again.
        """
        config = self.state.config
        count = 0 if config.trainer.is_supervised else config.samples.groups  # there nothing was sampled
        if self._kept_of != (batch.train_version, count):
            groups = [self.state.groups[id] for id in batch.groups] if count else []
            step = batch.train_version + 1
            self._kept = kept_groups(groups, count=count, step=step, seed=config.run.seed)
            self._kept_of = batch.train_version, count
        return self._kept

    def finish(self, policy_version: int) -> bool:
        """Whether the trainer was asked to make this version; it holds it from now on."""
        if self._fed is None or policy_version != self._fed + 1:
            return False
        self._held, self._fed = policy_version, None
        return True

    def _fall_back(self, policy_version: int) -> None:
        """The checkpoints after this version cannot be used any more."""
        self.state.emit(
            Warn(
                f"The trainer began at version {policy_version}, though a checkpoint of version "
                f"{self.saved_version} was written: that one is damaged or gone, its log says how. Versions "
                f"{policy_version + 1} to {self.state.steps} are made again, from the same batches."
            )
        )
        self._saved = [version for version in self._saved if version <= policy_version]
        self.saved_version = policy_version or -1

    def cover(self, policy_version: int) -> None:
        """Drop the batches that the oldest checkpoint that counts has made unnecessary.

        `policy_version`: that of a checkpoint that is complete now.
        """
        self.saved_version = max(self.saved_version, policy_version)
        keep = self.state.config.trainer.keep_checkpoints
        self._saved = sorted({*self._saved, policy_version})[-keep:]
        ways_back = self._saved if len(self._saved) == keep else [0, *self._saved]
        oldest = min(version for version in ways_back if self.saved_version - version <= MAX_COVERED)
        kept = self.state.batches
        covered = [kept.pop(version) for version in list(kept) if version < oldest]
        for batch in covered:
            self.state.disposal.add(batch.items)
        if covered:
            self.state.emit(DropPayload(tuple(group for batch in covered for group in batch.groups)))


def _no_way_on(policy_version: int, *, oldest: int, steps: int) -> str:
    """Why a trainer that begins at this version cannot be brought to where the run is, and what to do."""
    if policy_version > steps:
        return (
            f"The trainer began at version {policy_version}, but run.db ends after version {steps}: its end "
            "is lost, as after a power cut with `run.durability: process`, or the checkpoint is of another "
            f"run; expected {oldest} to {steps}{', or no checkpoint' * (oldest == 0)}. Move newer ones out "
            "of `checkpoints`, and start again."
        )
    return (
        f"The trainer began at version {policy_version}; the run has made {steps} and keeps the batches from "
        f"version {oldest} on, so expected {oldest} to {steps}. All checkpoints from version {oldest} on are "
        "damaged or were removed, as the trainer's log says: put one of these back into `checkpoints` and "
        "start again, or begin a new run with run.resume=never."
    )
