"""What a group is for: to be trained, or to evaluate a version. What becomes of it differs, its way does not.

Invariant: a group has one purpose for life, which its id tells.
"""

from typing import NamedTuple, Protocol

from controller.core.state.groups import Group


class Purpose(Protocol):
    """What happens to a group at each station of its way, of which a reward worker has told."""

    def on_encoded(self, group: Group) -> None:
        """Its prompt is tokens."""
        ...

    def on_refused(self, group: Group, reason: str, worker: str) -> None:
        """Its prompt cannot be used, by the name of the worker that says so."""
        ...

    def on_scored(self, group: Group) -> None:
        """Its rewards are there."""
        ...

    def on_call_failed(self, group: Group, told: str) -> bool:
        """The reward function failed on it; returns whether it may be tried once more."""
        ...

    def on_failed(self, group: Group, reason: str) -> None:
        """Its generation or scoring failed too often: it leaves, by name."""
        ...


class Purposes(NamedTuple):
    """Both of them."""

    training: Purpose
    evaluation: Purpose

    def of(self, group: Group) -> Purpose:
        """What this group is for."""
        return self.evaluation if group.is_evaluation else self.training
