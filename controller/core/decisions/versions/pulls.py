"""Moves instances to newer weights: interrupts their trajectories, then has them pull.

Invariants: only a ready instance that is not pulling is told to pull; its trajectories are interrupted first,
unless they keep their KV (`staleness.keep_kv`); other instances go on; only a visible version is pulled; an
instance that can do nothing at its version pulls, whatever the strategy says; pulls per step are bounded, and
the other chosen instances are told in the steps that follow at once, before any work is placed.
Source: StaleFlow (arXiv 2601.12784), synchronization.
"""

from collections.abc import Iterable

from controller.core.decisions.versions.relay_tree import RelayTree
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.agents import homes
from controller.core.state.dispatch_queue import UNSTARTED
from controller.core.state.policy_versions import Published
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views import admission, instances
from protocol.messages import Interrupt, Pull
from strategies.cost_model import prefill_s
from strategies.views import SyncView

PULLS_PER_STEP = 128  # then other events have their turn


class Pulls:
    """Decides which instances pull, and when."""

    def __init__(self, state: RunState, relay_tree: RelayTree, evaluation: EvaluationRounds) -> None:
        self.state = state
        self.relay_tree, self.evaluation = relay_tree, evaluation
        self._seen = -1  # newest version at the last decision; -1: decide again
        self._decided_at = 0.0
        self._decided_after = 0
        self._was_placing = False  # whether an evaluation had responses to place at the last look
        self._chosen: list[Instance] = []  # instances chosen by the last decision and not told yet

    @property
    def is_cut(self) -> bool:
        """Whether chosen instances have to be told in the next step."""
        return bool(self._chosen)

    def end_rests(self) -> None:
        """End the rests that are over; their instances may pull again."""
        if self.state.versions.rests.end(self.state.now):
            self._seen = -1

    def run(self) -> None:
        """Choose instances if a decision is due, and have them pull the newest version."""
        is_placing = self.evaluation.is_placing
        if self._was_placing and not is_placing:
            self._seen = -1  # the evaluation held idle instances at its version until now
        self._was_placing = is_placing
        newest = self.state.versions.newest
        if newest is not None and self.state.versions.is_lost(newest.policy_version):
            self._seen = -1  # decide when it is there again
            self._chosen = []
            return
        if newest is None or not self._may_load:
            self._chosen = []
            return
        if self._chosen and newest.policy_version == self._seen:
            self._pull_some(newest)
            return
        if not self._is_due(newest.policy_version):
            return
        self._seen, self._decided_at = newest.policy_version, self.state.now
        self._decided_after, self._chosen = self.state.events, []
        behind = self._behind(self.state.registry.instances(), newest.policy_version)
        behind = self.relay_tree.reachable(behind, newest)
        if not behind:
            return
        useful = self._useful({instance.policy_version for instance in behind})
        views = [self._view(instance, useful[instance.policy_version]) for instance in behind]
        settings = self.state.refresh_settings(admission.admissible(self.state))
        numbers = set(self.state.strategies.synchronize(views, settings))
        self._chosen = [i for i in behind if i.id in numbers or self._must_pull(i)]
        self._pull_some(newest)

    def _pull_some(self, newest: Published) -> None:
        """Tell the next chosen instances, if they may still pull."""
        some, self._chosen = self._chosen[:PULLS_PER_STEP], self._chosen[PULLS_PER_STEP:]
        some = self._behind(some, newest.policy_version)
        self._pull(self.relay_tree.reachable(some, newest), newest)

    def serve_evaluation(self) -> None:
        """Have one instance pull the version that an evaluation waits for, if none has it or is pulling it.

        Held-out responses that have begun continue at the version of their newest token, or a newer one.
        """
        wanted = self.evaluation.wanted
        if wanted is None or not self._may_load or self.state.versions.is_lost(wanted.policy_version):
            return
        able = filter(self.evaluation.may_run, self.state.registry.instances())
        newest = max((instance.next_version for instance in able), default=None)
        begun = self.state.held_out_queue.newest_level()
        if newest is not None and newest >= min(begun, wanted.policy_version):
            return
        free = self._free(self.state.registry.instances(), wanted.policy_version)
        free = self.relay_tree.reachable(free, wanted)
        if free:
            is_newer = {i.id: i.policy_version > wanted.policy_version for i in free}
            chosen = min(free, key=lambda i: (is_newer[i.id], len(i.running), i.id))
            self._pull([chosen], wanted)

    @property
    def _may_load(self) -> bool:
        """Whether instances may load weights now: not while the trainer has a shared device."""
        return self.state.device in ("own", "rollout")

    def _must_pull(self, instance: Instance) -> bool:
        """Whether the instance has to pull, whatever the strategy says.

        It has no weights yet, or it is idle and no fresh or begun work may run at its version.
        """
        if instance.policy_version < 0:
            return True
        if len(instance.running) > instance.evaluating:
            return False
        staleness = self.state.config.staleness
        if not (staleness.partial_rollout or staleness.keep_kv):
            return True  # it takes no work before it has pulled
        version, queue, ledger = instance.policy_version, self.state.queue, self.state.ledger
        if queue.peek(version, ledger.reach(version)) is not None:
            return False
        return bool(queue) or not ledger.can_reserve(version) or admission.is_closed(self.state)

    def _useful(self, versions: set[int]) -> dict[int, int]:
        """How many queued trajectories may run under each of these versions.

        An unstarted trajectory may not run under all of them: an older version makes its group due sooner,
        and the ledger may have no place there.
        """
        tally, reach = self.state.queue.tally(), {v: self.state.ledger.reach(v) for v in sorted(versions)}
        return {
            version: sum(
                count
                for (level, deadline), count in tally.items()
                if (deadline <= most if level == UNSTARTED else level <= version)
            )
            for version, most in reach.items()
        }

    def _is_due(self, newest: int) -> bool:
        if newest != self._seen:
            return True
        is_time = self.state.now >= self._decided_at + self.state.config.staleness.decide_s
        if is_time and self.state.events >= self._decided_after + self.state.registry.ready_instances:
            return True
        workers = self.state.registry.workers
        for peer in self.state.registry.changed:  # after each event, mostly one
            instance = workers[peer]
            assert isinstance(instance, Instance)
            is_dry = len(instance.running) == instance.evaluating
            if is_dry and self._behind((instance,), newest):
                return True
        return admission.is_closed(self.state)

    def _behind(self, instances: Iterable[Instance], newest: int) -> list[Instance]:
        """The instances of an older version that may pull."""
        older = [instance for instance in instances if instance.policy_version < newest]
        return [one for one in self._free(older, newest) if not self.evaluation.holds(one)]

    def _free(self, instances: Iterable[Instance], policy_version: int) -> list[Instance]:
        """The instances that may be told to pull this version now."""
        staleness, rests = self.state.config.staleness, self.state.versions.rests
        may_run_on = staleness.partial_rollout or staleness.keep_kv
        return [
            instance
            for instance in instances
            if instance.ready
            and instance.pulling is None
            and instance.device != "releasing"
            and (may_run_on or not instance.running)
            and not rests.has(instance.peer, policy_version)
        ]

    def _view(self, instance: Instance, useful: int) -> SyncView:
        running, tokens = len(instance.running), instance.resident_tokens
        coefficients = instance.fit.coefficients if instance.fit else self.state.coefficients
        parked = homes.parked(instance, self.state.groups) if instance.parked else []
        restart_s = 0.0
        if not self.state.config.staleness.keep_kv:
            if running:
                restart_s += running * prefill_s(coefficients, tokens / running)
            if parked:
                restart_s += len(parked) * prefill_s(coefficients, sum(parked) / len(parked))
        return SyncView(
            instance.id,
            instance.policy_version,
            running,
            tokens,
            instance.capacity,
            coefficients,
            instance.pull_s,
            restart_s,
            instance.status.waiting if instance.status else 0,
            instances.kv_tokens(instance),
            useful,
            len(parked),
            sum(parked),
        )

    def _pull(self, chosen: list[Instance], version: Published) -> None:
        state = self.state
        for instance, sources in self.relay_tree.sources(chosen, version):
            is_back = version.policy_version < instance.policy_version
            if instance.running and (is_back or not state.config.staleness.keep_kv):
                attempts = tuple(id.attempt(number) for id, number in instance.running.items())
                state.send(instance.peer, Interrupt(attempts))
                state.accounts.counts["interrupts"] += len(attempts)
            instance.pulling = version.policy_version
            instance.device = "own" if state.device == "own" else "held"
            state.registry.changed[instance.peer] = None
            state.accounts.counts["pulls"] += 1
            if version.policy_version > state.pulled_version:
                state.pulled_version = version.policy_version
                state.started_at_pull, state.in_system_at_pull = state.started, len(state.ledger)
            state.send(instance.peer, Pull(version.policy_version, version.location, version.digest, sources))
