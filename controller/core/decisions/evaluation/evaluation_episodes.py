"""Which held-out episodes begin at agent workers, beside those of training.

Invariants: they take no place beyond their share while training wants it, and are never kept from it: within
their share they go before groups that are only prepared; a run that has made its steps gives them all places.
"""

from controller.core.effects import turns
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.agents.episodes import Episode
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.run_state import RunState


class EvaluationEpisodes:
    """Begins held-out groups, and starts them."""

    def __init__(self, state: RunState, rounds: EvaluationRounds) -> None:
        self.state, self.rounds = state, rounds

    def next(self) -> Group | None:
        """The next held-out group, none of whose episodes has begun."""
        rows = self.state.held_out_rows
        while rows and rows[0] not in self.state.groups:
            rows.popleft()  # it was given up
        return self.state.groups[rows[0]] if rows else None

    @property
    def is_below_share(self) -> bool:
        """Whether evaluation has fewer episodes at workers than it may have while training wants more."""
        if self.state.ending is not None:
            return True
        workers = list(self.state.registry.agents())
        running = sum(group >= FIRST_EVALUATION_GROUP for worker in workers for group, _ in worker.episodes)
        share = self.state.config.evaluation.share
        return running < max(1, int(share * sum(worker.capacity for worker in workers)))

    def begin(self, group: Group) -> Episode:
        """Its episodes are to begin; returns the first."""
        assert self.state.held_out_rows[0] == group.id
        self.state.held_out_rows.popleft()
        self.rounds.on_begun(group)
        return group.episodes[0]

    def start(self, group: Group) -> None:
        """An episode of the group has asked, as the first."""
        self.rounds.on_asked(group)

    def call_off_training(self) -> None:
        """The run has made its steps: training gives its places up, until the run goes on."""
        groups = [group for group in self.state.groups.values() if not group.is_evaluation]
        at_workers = [one for group in groups for one in group.episodes if one.peer is not None]
        turns.call_off(self.state, at_workers, "the run has made its train steps")
        self.state.unbegun |= dict.fromkeys((one.group, one.number) for one in at_workers)
