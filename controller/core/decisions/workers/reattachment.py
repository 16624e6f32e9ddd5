"""Reattachment after a controller restart: in-flight work stays reserved for its worker until the lease ends.

Invariants: an absent instance gets no work, and its trajectories are not routed elsewhere before its lease
ends; an instance that comes back continues the same attempts after the last journalled token, under weights
that their versions allow; trajectories that it does not have, or may not continue, are queued for another
instance. A local worker ended with its controller; its successor, a process without weights, reports the
unacknowledged tokens of the ended one and continues nothing.
"""

from controller.core.commands import Forget
from controller.core.effects import recall
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.groups import Trajectory
from controller.core.state.registry import Instance, Worker
from controller.core.state.run_state import RunState
from controller.core.state.told import ToldInstance
from controller.core.state.views.instances import InstanceViews
from protocol.messages import Holding, Interrupt, Keep


class Reattachment:
    """Keeps the trajectories of instances that may come back."""

    def __init__(self, state: RunState, views: InstanceViews, evaluation: EvaluationRounds) -> None:
        self.state = state
        self.views, self.evaluation = views, evaluation

    def may_come(self, worker: Worker) -> bool:
        """Whether this worker, or its local respawn, may still report work from before the restart."""
        if not isinstance(worker, Instance) or not worker.running:
            return False
        config = self.state.config
        if worker.name in self.state.registry.local:
            return worker.name in config.local_instances
        return config.controller.reattach_s > 0

    def expect(self, worker: Worker) -> None:
        """Let an absent worker keep its trajectories until its lease ends."""
        assert isinstance(worker, Instance)
        self.views.forget(worker)
        self.state.registry.make_absent(worker, self.state.now, self.state.config.controller.lease_s)

    def on_holding(self, instance: Instance, message: Holding) -> None:
        """A worker says who it was and what it holds: let it continue what is still wanted."""
        if instance.ready:  # too late: it may have other work by now
            return
        held = {(group, member, attempt): start for group, member, attempt, start in message.attempts}
        kept: list[Trajectory] = []
        for peer in message.formers:
            former = self.state.registry.workers.get(peer)
            if isinstance(former, Instance) and former.is_absent:
                kept += self._take_over(former, instance, message.policy_version, held)
        attempts = tuple((*member.id.attempt(member.attempt), member.reported) for member in kept)
        self.state.send(instance.peer, Keep(attempts))
        groups = self.state.groups
        cut = [m for m in kept if groups[m.id.group].is_cut_short]  # that order may have been lost
        if cut:
            self.state.send(instance.peer, Interrupt(tuple(m.id.attempt(m.attempt) for m in cut)))
        self.state.accounts.counts["trajectories/kept"] += len(kept)

    def on_ready(self, instance: Instance) -> None:
        """A local worker is a new process: tokens of its predecessor not reported by now are lost."""
        registry = self.state.registry
        if instance.name not in registry.local:
            return
        instance.policy_version = -1
        recall.take_back(self.state, instance, list(instance.running))
        for former in list(registry.instances()):
            if former.is_absent and former.name == instance.name:
                self._let_go(former)

    def _take_over(
        self, former: Instance, instance: Instance, version: int, held: dict[tuple[int, int, int], int]
    ) -> list[Trajectory]:
        """Hand the trajectories of an absent instance to its successor; queue those it cannot continue."""
        registry = self.state.registry
        kept: list[Trajectory] = []
        pulling = former.told.pulling if isinstance(former.told, ToldInstance) else None
        may_have = (former.policy_version, pulling.policy_version if pulling is not None else -1)
        if version <= self.state.ledger.train_version and version in may_have:
            instance.policy_version = version
            for id, attempt in list(former.running.items()):
                member = self.state.groups[id.group].members[id.member]
                start = held.get(id.attempt(attempt))
                if start is not None and start <= member.reported and self._may_go_on(member, version):
                    registry.hand_over(former, instance, member)
                    kept.append(member)
        self._let_go(former)
        return kept

    def _let_go(self, former: Instance) -> None:
        self.state.registry.remove(former.peer)
        recall.take_back_all(self.state, former)
        self.state.emit(Forget(former.peer, ""))

    def _may_go_on(self, member: Trajectory, version: int) -> bool:
        """Whether a trajectory may continue under this version."""
        group = self.state.groups[member.id.group]
        assert group.policy_version is not None, f"group {group.id} runs and has not started"
        if version < max(member.newest_version, group.policy_version):
            return False
        if not group.is_evaluation:
            return True
        found = self.evaluation.round
        return found is not None and (not found.is_exact or version == found.policy_version)
