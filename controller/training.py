"""The training side of the core: when a batch goes to the trainer, and what follows from a step.

Invariants: the trainer has at most one batch; a batch is consumed in the order of versions; no trajectory in
it is older than the bound, which is asserted here where it counts; versions become visible in order.
"""

from controller.commands import DropPayload, ReportStep
from controller.groups import Group
from controller.metrics import batch_metrics
from controller.policy_versions import Published
from controller.registry import Worker
from controller.state import RunState
from protocol.messages import (
    CheckpointSaved,
    PolicyPublished,
    Retire,
    SaveCheckpoint,
    Train,
    TrainStepFinished,
)


class Training:
    """Feeds the trainer."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.batch: tuple[int, ...] = ()  # groups that are being trained
        self.checkpoint_of: int | None = None  # version that is being saved
        self.saved_version = -1
        self._idle_since: float | None = None
        self._metrics: dict[str, object] = {}

    @property
    def is_busy(self) -> bool:
        """Whether the trainer has something to do that its next batch must wait for."""
        return bool(self.batch) or self.checkpoint_of is not None

    def consume(self) -> None:
        """Send the next batch if there is one and the trainer is free."""
        trainer = self.state.registry.trainer()
        if trainer is None or self.is_busy or self.state.ending is not None:
            return
        ready = self.state.ledger.ready_batch()
        if ready is None:
            return
        train_version = self.state.ledger.train_version
        groups = [self.state.groups[id] for id in sorted(ready)]
        self._assert_bound(groups, train_version)
        self.state.ledger.consume(ready)
        for group in groups:
            group.state = "training"
        self.batch = tuple(group.id for group in groups)
        self._metrics = batch_metrics(groups, train_version)
        self._metrics["trajectories"] = sum(len(group.members) for group in groups)
        if self._idle_since is not None:
            self.state.accounts.spend("wait", self.state.now - self._idle_since)
        items = tuple(item for group in groups for item in group.train_items())
        self.state.send(trainer.peer, Train(train_version, items))

    def on_ready(self) -> None:
        """A trainer is there; from now on it waits for batches."""
        self._idle_since = self.state.now

    def on_finished(self, trainer: Worker, message: TrainStepFinished) -> None:
        """A version was made: account its batch and write its line."""
        if not self.batch or message.policy_version != self.state.steps + 1:
            return
        for id in self.batch:
            self.state.accounts.close(self.state.groups.pop(id), "trained")
        self.state.emit(DropPayload(self.batch))
        self.batch, self._idle_since = (), self.state.now
        self.state.steps += 1
        self.state.accounts.spend("train", message.train_s)
        line = self.state.accounts.step_line(
            self.state.now, step=self.state.steps, batch=self._metrics, trainer=dict(message.metrics)
        )
        self.state.emit(ReportStep(line))
        every = self.state.config.trainer.checkpoint_steps
        if self.state.steps >= self.state.config.run.steps:
            self.state.end(f"All {self.state.steps} train steps are made.", is_success=True)
        elif every and self.state.steps % every == 0:
            self.save(trainer)

    def save(self, trainer: Worker) -> None:
        """Ask for a checkpoint of the newest version."""
        self.checkpoint_of = self.state.steps
        self.state.send(trainer.peer, SaveCheckpoint(self.state.steps))

    def on_saved(self, message: CheckpointSaved) -> None:
        """A checkpoint is complete."""
        self.saved_version = max(self.saved_version, message.policy_version)
        if self.checkpoint_of == message.policy_version:
            self.checkpoint_of = None

    def on_published(self, message: PolicyPublished) -> None:
        """A version became visible."""
        if self.state.versions.publish(Published(message.policy_version, message.location, message.digest)):
            self.state.accounts.spend("publish", message.publish_s)

    def retire(self) -> None:
        """Free versions that nobody needs any more."""
        trainer = self.state.registry.trainer()
        if trainer is not None:
            for version in self.state.versions.retire(self.state.registry.being_pulled()):
                self.state.send(trainer.peer, Retire(version))

    def _assert_bound(self, groups: list[Group], train_version: int) -> None:
        for group in groups:
            age = train_version - group.oldest_token_version()
            if age > self.state.config.staleness.max_staleness:
                self.state.accounts.violations += 1
            assert age <= self.state.config.staleness.max_staleness, f"group {group.id} is {age} versions old"
