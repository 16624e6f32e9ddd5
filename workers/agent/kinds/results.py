"""Checks the result of an agent's code: one finite number, or none, and where it was earned.

Invariants: any other result becomes an error message, never a reward; rewards of turns are not counted again
as a reward of the episode.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from protocol.messages import MAX_REWARD, Earned
from workers.agent.policy import Notes, finite


class Returned(Enum):
    """Results of a kind of agent other than a number."""

    TURN_REWARDS = "the rewards of its turns"  # and no other, even if there are none


class EpisodeReward(NamedTuple):
    """The reward of a whole episode."""

    value: float | None  # None: a reward function scores it
    earned: Earned


class BadResult(Exception):
    """The code returned a result that is not a reward; the text is for the user."""


class NothingSaid(Exception):
    """A limit was reached before the policy had answered; the text is for the user."""


class ProgramFailed(Exception):
    """A program ended with an exit code other than 0; the text is for the user."""


def reward_of(result: Any, notes: Notes) -> EpisodeReward:
    """The reward of an episode, from its result.

    A number, a mapping with `score`, or None: then the sum of its turns' rewards, if there are any. Raises:
    BadResult.
    """
    if result is Returned.TURN_REWARDS:
        return reward_of_turns(notes)
    if isinstance(result, Mapping):
        if "score" not in result:
            raise BadResult(
                f"The agent returned the mapping {result!r:.120} without `score`; expected "
                '{"score": number}, a number, or None.'
            )
        result = result["score"]
    if result is None:
        return reward_of_turns(notes) if notes.rewards else EpisodeReward(None, "end")
    try:
        return EpisodeReward(finite(result, "The end of the episode"), "end")
    except ValueError:
        raise BadResult(
            f"The agent returned {result!r:.120} of type {type(result).__name__}; expected a finite number "
            f"of at most {MAX_REWARD:g} in size, a mapping with `score`, or None."
        ) from None


def reward_of_turns(notes: Notes) -> EpisodeReward:
    """The sum of the turns' rewards. Raises: BadResult."""
    try:
        return EpisodeReward(finite(sum(notes.rewards.values()), "The sum of the rewards of turns"), "turns")
    except ValueError as error:
        raise BadResult(str(error)) from None
