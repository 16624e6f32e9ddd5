"""The life of a policy version: published by the trainer, visible, and freed when nothing needs it.

Invariants: versions become visible in order, but one held for an evaluation may be shown again; a version is
freed everywhere: at the trainer, and on the hosts that relay it.
"""

from controller.core.decisions.versions.relay_tree import RelayTree
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.policy_versions import Published
from controller.core.state.registry import Worker
from controller.core.state.run_state import RunState
from protocol.ids import PeerId
from protocol.messages import PolicyPublished, Retire


class Publication:
    """Makes versions visible, and frees them."""

    def __init__(self, state: RunState, relay_tree: RelayTree, evaluation: EvaluationRounds) -> None:
        self.state = state
        self.relay_tree, self.evaluation = relay_tree, evaluation

    def on_published(self, trainer: Worker, message: PolicyPublished) -> None:
        """The trainer published a version, or published it again after it started over."""
        versions = self.state.versions
        if not trainer.ready and message.policy_version > self.state.ledger.train_version:
            # a version left on the host by an older run of this name, which must not be pulled
            self.state.send(trainer.peer, Retire(message.policy_version))
            return
        if trainer.ready:
            versions.passed = max(versions.passed, message.policy_version)
        published = Published(message.policy_version, message.location, message.digest, trainer.host)
        before = versions.get(message.policy_version)
        if versions.publish(published):
            self.state.accounts.spend("publish", message.publish_s)
        elif before is None and message.policy_version in self.evaluation.held_versions():
            versions.show_again(published)
        elif not versions.renew(published):
            self._free_at(trainer.peer, message.policy_version)
        elif published != before:  # instances with the old one cannot relay it as the new one
            self.relay_tree.retire(message.policy_version)

    def retire(self) -> None:
        """Free versions that are no longer needed."""
        if self.state.versions.count < 2:  # the newest is never freed
            return
        trainer = self.state.registry.trainer()
        if trainer is not None:
            needed = self.state.registry.being_pulled() | self.evaluation.held_versions()
            for version in self.state.versions.retire(needed):
                self._free_at(trainer.peer, version)
                self.relay_tree.retire(version)

    def _free_at(self, trainer: PeerId, policy_version: int) -> None:
        """Tell the trainer to free a version; a successor is told again in `TrainerBatches.attach`."""
        self.state.versions.freed.append(policy_version)
        self.state.send(trainer, Retire(policy_version))
