"""The purpose of a group, training or evaluation, which decides what follows from each report about it.

Invariant: a group has one purpose for life, which its id tells.
"""

from typing import NamedTuple, Protocol

from controller.core.state.groups import Group


class Purpose(Protocol):
    """What follows for a group from each report of a reward worker about it."""

    def on_encoded(self, group: Group) -> None:
        """The prompt is encoded."""
        ...

    def on_refused(self, group: Group, reason: str, worker: str) -> None:
        """The prompt cannot be used; `worker`: name of the worker that refused it."""
        ...

    def on_scored(self, group: Group) -> None:
        """The rewards of all responses are there."""
        ...

    def on_call_failed(self, group: Group, told: str) -> bool:
        """The reward function failed on the group; returns whether it may be tried again."""
        ...

    def on_failed(self, group: Group, reason: str) -> None:
        """Generation or scoring failed too often: the group leaves, and a text names it."""
        ...


class Purposes(NamedTuple):
    """Both purposes."""

    training: Purpose
    evaluation: Purpose

    def of(self, group: Group) -> Purpose:
        """The purpose of this group."""
        return self.evaluation if group.is_evaluation else self.training
