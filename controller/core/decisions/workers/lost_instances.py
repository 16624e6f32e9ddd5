"""Finds the prompt whose responses may be what ends rollout workers.

Invariant: a response that ends every instance that gets it leaves the run, after MAX_LOST instances if
nothing else ran on any of them.
"""

from collections import Counter

from controller.core.effects.purposes import Purposes
from controller.core.state.run_state import RunState
from protocol.ids import TrajectoryId

MAX_LOST = 6  # instances, while one response, or one turn of it, ran there


class LostInstances:
    """Counts, for each response in the system, the instances that died while it ran there."""

    def __init__(self, state: RunState, purposes: Purposes) -> None:
        self.state, self.purposes = state, purposes
        self._lost: dict[tuple[TrajectoryId, int], int] = {}  # by response and turn

    def run(self) -> None:
        """Count the responses that ran on instances that crashed or went silent, and were taken back.

        All are counted, since none is known to be the cause. If one of them has met MAX_LOST such ends within
        a turn, sets one prompt aside: of those with such a response the one whose responses have met most,
        the oldest of equals. If it was not the cause, the next end sets another one aside.
        """
        if not self.state.lost_attempts:  # nearly always
            return
        groups, ran = self.state.groups, self.state.lost_attempts
        self.state.lost_attempts = []
        known = self._lost = {key: count for key, count in self._lost.items() if key[0].group in groups}
        suspects: set[int] = set()
        for id in ran:
            group = groups.get(id.group)
            if group is None or group.members[id.member].state != "queued":
                continue  # it has ended
            turn = (id, group.members[id.member].turns)
            known[turn] = known.get(turn, 0) + 1
            if known[turn] >= MAX_LOST:
                suspects.add(id.group)
        if suspects:
            met = Counter[int]()
            for (id, _), count in known.items():
                met[id.group] += count
            worst = groups[max(sorted(suspects), key=met.__getitem__)]
            most = max(count for (id, _), count in known.items() if id.group == worst.id)
            text = f"{most} rollout workers died while they generated a response to it."
            self.purposes.of(worst).on_failed(worst, text)
