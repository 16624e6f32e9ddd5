"""The batch that the trainer works on, and the batches kept so that a successor can repeat them.

Invariants: a batch is kept, items and payload, until the oldest checkpoint that a trainer may fall back to
covers its version, so that any of these checkpoints will do if newer ones are damaged; the trainer gets
batches in the order of versions, one at a time; a version is made again only by a trainer that holds an older
one. Groups that were sent ahead of a batch count only for that trainer: its successor gets the whole batch.
"""

from controller.core.commands import DropPayload, Warn
from controller.core.state.batches.contributions import Batch
from controller.core.state.groups import Group
from controller.core.state.kept_samples import KeptGroup, asked_groups, kept_groups
from controller.core.state.run_state import RunState
from protocol.ids import PeerId
from protocol.messages import Retire, Train, TrainAhead

MAX_UNSAVED = 200  # batches; then a checkpoint is due whatever `trainer.checkpoint_steps` says
MAX_COVERED = 200  # batches kept behind the newest checkpoint; older checkpoints are no fallback


class TrainerBatches:
    """Feeds batches to the trainer, and again to its successors."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.saved_version = -1
        """Newest version with a complete checkpoint; -1 before the first."""
        self._saved: list[int] = []  # versions of the checkpoints that the trainer keeps, oldest first
        self._held: int | None = None  # version that the trainer holds; None without a trainer
        self._fed: int | None = None  # train_version of the trainer's batch
        self.ahead: list[int] = []
        """Groups that the trainer was sent ahead of their batch."""
        self.is_ahead = False
        """Whether the trainer works on groups sent ahead."""
        self._kept_of = (-1, 0)  # train_version and number of samples that `_kept` was made for
        self._kept: tuple[KeptGroup, ...] = ()

    @property
    def making(self) -> int | None:
        """The version that the trainer is making, from a batch or from streamed groups; None if none."""
        if self.is_ahead and self._held is not None:
            return self._held + 1
        return None if self._fed is None else self._fed + 1

    @property
    def oldest_start(self) -> int:
        """Oldest version from which a trainer can catch up with the run by the kept batches."""
        return min([*self.state.batches, self.state.steps])

    @property
    def is_behind(self) -> bool:
        """Whether the trainer is repeating versions that were lost with its predecessor."""
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
        """Feed a ready trainer that holds `policy_version` the batches that it has missed.

        Ends the run if the kept batches do not lead from that version to the newest.
        """
        steps, oldest = self.state.steps, self.oldest_start
        if not oldest <= policy_version <= steps:
            reason = _no_way_on(policy_version, oldest=oldest, steps=steps)
            self.state.end(reason, is_success=False, spoils=True)
            return
        self.lose()
        self._held = policy_version
        if policy_version < self.saved_version:
            self._fall_back(policy_version)
        if policy_version:  # it was loaded from a complete checkpoint that may not have been reported
            self.cover(policy_version)
        for version in self.state.versions.freed:
            # a trainer publishes the version it holds first; if none is visible, instances pull that one
            is_first = version == policy_version and self.state.versions.newest is None
            if not is_first and self.state.versions.get(version) is None:
                self.state.send(peer, Retire(version))
        self.go_on(peer)

    def lose(self) -> None:
        """The trainer is gone."""
        self._held = self._fed = None
        self.ahead, self.is_ahead = [], False

    def send_ahead(self, groups: list[Group], peer: PeerId) -> None:
        """Let the trainer begin on groups that are certain to be in the next batch.

        One such order is in progress at a time, so groups that become certain meanwhile go together.
        """
        assert self._held is not None, "nobody is there to begin"
        assert not self.is_ahead, "it has begun on others"
        self.ahead += [group.id for group in groups]
        self.is_ahead = True
        items = tuple(item for group in groups for item in group.contribute().items)
        self.state.send(peer, TrainAhead(self._held, items, self.state.config.is_cut))

    def on_ahead(self, train_version: int) -> None:
        """The trainer has finished the groups that it was sent ahead of this batch."""
        self.is_ahead = self.is_ahead and train_version != self._held

    def add(self, batch: Batch, peer: PeerId) -> None:
        """Keep a consumed batch, and send it to the trainer."""
        assert self._held == batch.train_version, f"batch {batch.train_version}, trainer at {self._held}"
        self.state.batches[batch.train_version] = batch
        self.go_on(peer)

    def go_on(self, peer: PeerId) -> None:
        """Send the next batch from the version that the trainer holds, if it was consumed already."""
        batch = None if self._held is None else self.state.batches.get(self._held)
        if batch is None:
            return
        newest = self.state.versions.newest
        # the newest version is published again, as it may be lost with the trainer that made it
        is_published = newest is not None and newest.policy_version > batch.train_version + 1
        is_published |= self.state.config.trainer.is_supervised  # there nothing reads it
        self._fed = batch.train_version
        ahead = sum(item.group in self.ahead for item in batch.items) if self.ahead else 0
        is_cut = self.state.config.is_cut
        order = Train(batch.train_version, batch.items, is_published, ahead, is_cut, self._samples_of(batch))
        self.state.send(peer, order)
        self.ahead, self.is_ahead = [], False

    def _samples_of(self, batch: Batch) -> tuple[int, ...]:
        """Groups whose tokens the trainer reports on; none if the step of the batch was accounted before."""
        return asked_groups(self.kept(batch)) if batch.train_version >= self.state.steps else ()

    def kept(self, batch: Batch) -> tuple[KeptGroup, ...]:
        """Samples of a batch whose step is not accounted yet: chosen once, when it is consumed.

        They are chosen again only if the run is resumed with another `samples.groups`.
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
        """Note that the trainer made a version; returns whether it was asked to."""
        if self._fed is None or policy_version != self._fed + 1:
            return False
        self._held, self._fed = policy_version, None
        return True

    def _fall_back(self, policy_version: int) -> None:
        """The checkpoints of newer versions turned out to be unusable."""
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
        """Drop the batches before the oldest checkpoint that may be fallen back to.

        `policy_version`: version of a checkpoint that is complete now.
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
