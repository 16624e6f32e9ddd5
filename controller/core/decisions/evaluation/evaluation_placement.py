"""Places held-out prompts on instances of the right version, within evaluation's share of the slots.

Invariants: evaluation takes no slot beyond its share while training could use it, and is never starved: a
free slot goes to evaluation first while it has less than its share; a response runs at or above the evaluated
version, and at exactly that version if the evaluation is exact; an instance with responses of an exact
evaluation does not pull before they are done; placements per step are bounded.
"""

import random
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.groups import Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.instances import takes_work
from protocol.messages import Route

ROUTES_PER_STEP = 128  # then other events have their turn


class EvaluationPlacement:
    """Routes held-out responses, after `Pulls` and before `Dispatch`."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds) -> None:
        self.state, self.evaluation = state, evaluation
        self.is_cut = False  # the last step ended at ROUTES_PER_STEP
        self._looked: tuple[int, bool] | None = None  # the situation when all instances were looked at last

    def run(self) -> None:
        """Route waiting held-out responses, to instances with the fewest of them first."""
        self.is_cut = False
        queue = self.state.held_out_queue
        if not queue:
            return
        free = [(one.evaluating, one.id) for one in self._candidates() if self.evaluation.may_run(one)]
        heapify(free)
        for _ in range(ROUTES_PER_STEP):
            if not free or not queue:
                return
            instance = self.state.registry.instance(free[0][1])
            trajectory = queue.peek(instance.next_version)
            if trajectory is None or not self._has_room(instance, trajectory):
                heappop(free)
                continue
            self._place(trajectory, instance)
            heapreplace(free, (instance.evaluating, instance.id))
        self.is_cut = True
        self._looked = None

    def _candidates(self) -> Iterable[Instance]:
        """Instances that may have got room or the right version since the last step."""
        registry, before = self.state.registry, self._looked
        self._looked = (self.state.held_out_queue.pushed, self.state.ending is None)
        if self._looked != before:
            return registry.instances()
        found = (registry.workers[peer] for peer in registry.changed)
        return [instance for instance in found if isinstance(instance, Instance)]

    def _has_room(self, instance: Instance, trajectory: Trajectory) -> bool:
        if len(instance.running) >= instance.capacity or instance.evaluating >= self._limit(instance):
            return False
        fits = instance.resident_tokens + trajectory.resident_tokens <= instance.kv_tokens * instance.kv_share
        return fits or not instance.evaluating

    def _limit(self, instance: Instance) -> int:
        """Slots that evaluation may take at an instance; all of them if training can start nothing there."""
        is_held = self.evaluation.round is not None and self.evaluation.round.is_exact
        is_free = self.state.ending is not None or (
            is_held
            and not (
                takes_work(self.state, instance) and self.state.ledger.can_reserve(instance.next_version)
            )
        )
        share = self.state.config.evaluation.share
        return instance.capacity if is_free else max(1, int(share * instance.capacity))

    def _place(self, trajectory: Trajectory, instance: Instance) -> None:
        state = self.state
        state.held_out_queue.remove(trajectory)
        group = state.groups[trajectory.id.group]
        trajectory.attempt += 1
        trajectory.moved_from = None
        trajectory.expected_tokens = state.expected_tokens(group, trajectory)
        state.registry.place(instance, trajectory)
        state.accounts.reprefilled += trajectory.resident_tokens if trajectory.response_tokens else 0
        budget = state.most_tokens(group, trajectory) - trajectory.turn_tokens
        number = self.evaluation.number(group.id)  # the same noise for a prompt in every evaluation
        name = f"{state.config.run.seed}/evaluation/{number}/{trajectory.id.member}"
        if group.episodes:
            name += f"/{group.episode_of(trajectory.id.member).trial}.{trajectory.turns}"
        seed = random.Random(name).getrandbits(52)
        message = Route(
            *trajectory.id, trajectory.attempt, seed, budget, tuple(trajectory.segments), is_evaluation=True,
            begins=trajectory.begins,
        )  # fmt: skip
        state.send(instance.peer, message)
