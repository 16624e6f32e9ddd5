"""Finds prompts whose responses may be what ends rollout workers.

Invariant: a response that ends every instance that gets it leaves the run after MAX_LOST of them.
"""

from controller.core.effects.purposes import Purposes
from controller.core.state.run_state import RunState
from protocol.ids import TrajectoryId

MAX_LOST = 6  # instances, while one response, or one turn of it, ran there; then its prompt is set aside


class LostInstances:
    """Counts, for each response in the system, the instances that died while it ran there."""

    def __init__(self, state: RunState, purposes: Purposes) -> None:
        self.state, self.purposes = state, purposes
        self._lost: dict[tuple[TrajectoryId, int], int] = {}  # by response and turn

    def run(self) -> None:
        """Count the responses that ran on instances that crashed or went silent, and were taken back.

        All are counted, since none is known to be the cause. Sets the prompts aside of which a response has
        met MAX_LOST such ends within a turn.
        """
        if not self.state.lost_attempts:  # nearly always
            return
        groups, ran = self.state.groups, self.state.lost_attempts
        self.state.lost_attempts = []
        known = self._lost = {key: count for key, count in self._lost.items() if key[0].group in groups}
        for id in ran:
            group = groups.get(id.group)
            if group is None or group.members[id.member].state != "queued":
                continue  # it has ended, or a sibling has had its group set aside
            turn = (id, group.members[id.member].turns)
            known[turn] = known.get(turn, 0) + 1
            if known[turn] >= MAX_LOST:
                text = f"{known[turn]} rollout workers died while they generated response {id.member} to it."
                self.purposes.of(group).on_failed(group, text)
