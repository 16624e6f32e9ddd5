"""Staleness of the trained data, step by step: trajectories and tokens by their staleness.

Invariants: an age is told as the core counts it: of a trajectory that of its oldest weights, which its first
token is of; a token's own; given tokens have none. A step whose batch was sent again, to another trainer, is
one step.
"""

from collections import Counter
from typing import Any

from controller.core.commands import Send
from controller.durability.replay import Replayed
from protocol import messages

MOST_COLUMNS = 240
MOST_AGES = 24  # what is older is told with the last one
Json = dict[str, Any]
ByAge = dict[int, int]


class TrainedAges:
    """Follows the batches of a run."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[ByAge, ByAge]] = {}  # trajectories and tokens, by the version made

    def take(self, turn: Replayed) -> None:
        """Take the commands of an event."""
        for command in turn.commands:
            if isinstance(command, Send) and isinstance(command.message, messages.Train):
                train = command.message
                self._steps[train.train_version + 1] = ages_of(train.items, train.train_version)

    def columns(self, most_step: int | None = None) -> Json:
        """At most MOST_COLUMNS, each of one step or of several that follow each other."""
        steps = sorted(step for step in self._steps if most_step is None or step <= most_step)
        each = max(1, -(-len(steps) // MOST_COLUMNS))
        parts = [steps[at : at + each] for at in range(0, len(steps), each)]
        oldest = max((age for step in steps for ages in self._steps[step] for age in ages), default=0)
        rows = min(oldest + 1, MOST_AGES)
        return {
            "steps": [[part[0], part[-1]] for part in parts],
            "is_cut": oldest >= MOST_AGES,
            "trajectories": [self._sum(part, 0, rows) for part in parts],
            "tokens": [self._sum(part, 1, rows) for part in parts],
        }

    def _sum(self, steps: list[int], which: int, rows: int) -> list[int]:
        """By age from 0 up."""
        found = [0] * rows
        for step in steps:
            for age, count in self._steps[step][which].items():
                found[min(age, rows - 1)] += count
        return found

    def as_plain(self) -> list[Any]:
        """The whole state, as plain values for msgpack."""
        return [(step, *ages) for step, ages in self._steps.items()]

    def take_over(self, plain: list[Any]) -> None:
        """Restore the state from `as_plain`."""
        self._steps = {step: (dict(trajectories), dict(tokens)) for step, trajectories, tokens in plain}


def ages_of(items: tuple[messages.TrainItem, ...], train_version: int) -> tuple[ByAge, ByAge]:
    """Trajectories and sampled tokens of a batch by their staleness."""
    trajectories: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for item in items:
        sampled = [segment for segment in item.segments if not segment.is_given]
        for segment in sampled:
            tokens[max(0, train_version - segment.policy_version)] += segment.count
        if sampled:
            trajectories[max(0, train_version - sampled[0].policy_version)] += 1
    return dict(trajectories), dict(tokens)
