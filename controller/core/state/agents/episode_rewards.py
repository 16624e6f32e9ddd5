"""Rewards that episodes of a group brought with them, of their turns and in all.

Pure.
"""

from collections.abc import Sequence
from math import fsum, isclose

from controller.core.state.groups import Group


def is_rewarded(group: Group) -> bool:
    """Whether its episodes brought all their rewards with them."""
    return bool(group.episodes) and all(episode.reward is not None for episode in group.kept_episodes)


def take_rewards(group: Group, scored: Sequence[float] = ()) -> None:
    """Take the rewards of its responses.

    They are those that its episodes have, and for the others those that were `scored`.
    """
    kept = group.kept_episodes
    own = [scored[place] if one.reward is None else one.reward for place, one in enumerate(kept)]
    group.rewards = tuple(own) if group.episodes else tuple(scored)
    parts = [dict(one.parts) for one in kept]
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    if names:
        group.reward_parts = tuple((name, tuple(part[name] for part in parts)) for name in sorted(names))


def says_what_turns_earned(group: Group) -> bool:
    """Whether any of its episodes does.

    An older release did not tell that apart from what their ends earned, and nobody tells it of an episode
    that was timed out.
    """
    return any(episode.earned for episode in group.kept_episodes)


def turn_rewards(group: Group, penalties: Sequence[float] = ()) -> list[list[float]]:
    """Of each response, the reward of each turn; what was earned at its end counts at its last one.

    `penalties`: of each response, what else counts there; () is none.
    """
    found: list[list[float]] = []
    at_ends = penalties or [0.0] * len(group.rewards)
    is_told = says_what_turns_earned(group)
    for episode, reward, penalty in zip(group.kept_episodes, group.rewards, at_ends, strict=True):
        turns = dict.fromkeys(episode.trained_turns, 0.0)
        for member, number, value in episode.turn_rewards:
            turns[member, number] += value
        values = list(turns.values())
        is_of_turns = episode.earned == "turns" or (
            # its group goes on under a release that tells it: all are to be compared alike
            is_told and not episode.earned and isclose(reward, fsum(values))
        )
        values[-1] += 0.0 if is_of_turns else reward
        values[-1] += penalty
        found.append(values)
    return found
