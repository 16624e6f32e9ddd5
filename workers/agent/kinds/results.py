"""What an agent's code returned, checked: one finite number, or nothing.

Invariant: whatever else it is becomes an error in words, never a reward.
"""

from collections.abc import Mapping
from typing import Any

from workers.agent.policy import Notes, finite


class BadResult(Exception):
    """The code returned what is no reward; the text is for the user."""


class NothingSaid(Exception):
    """A limit was reached before the policy had said anything; the text is for the user."""


class ProgramFailed(Exception):
    """A program ended with an exit code other than 0; the text is for the user."""


def reward_of(result: Any, notes: Notes) -> float | None:
    """The reward of an episode; None: a reward function says it.

    A number, a mapping with `score`, or nothing: then the rewards of its turns count together, if there are
    any. Raises: BadResult.
    """
    if isinstance(result, Mapping):
        if "score" not in result:
            raise BadResult(
                f"The agent returned the mapping {result!r:.120} without `score`; expected "
                '{"score": number}, a number, or None.'
            )
        result = result["score"]
    if result is None:
        return sum(notes.rewards.values()) if notes.rewards else None
    try:
        return finite(result, "The end of the episode")
    except ValueError:
        raise BadResult(
            f"The agent returned {result!r:.120} of type {type(result).__name__}; expected a finite number, "
            "a mapping with `score`, or None."
        ) from None
