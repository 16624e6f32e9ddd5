"""Rewards that episodes of a group brought with them, of their turns and in all.

Pure.
"""

from collections.abc import Sequence

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
    """Whether all its episodes do: an older release did not tell that apart from what their ends earned."""
    return bool(group.episodes) and all(episode.earned for episode in group.kept_episodes)


def turn_rewards(group: Group, penalties: Sequence[float] = ()) -> list[list[float]]:
    """Of each response, the reward of each turn; what was earned at its end counts at its last one.

    `penalties`: of each response, what else counts there; () is none.
    """
    found: list[list[float]] = []
    at_ends = penalties or [0.0] * len(group.rewards)
    for episode, reward, penalty in zip(group.kept_episodes, group.rewards, at_ends, strict=True):
        turns = dict.fromkeys(episode.trained_turns, 0.0)
        for member, number, value in episode.turn_rewards:
            turns[member, number] += value
        values = list(turns.values())
        values[-1] += 0.0 if episode.earned == "turns" else reward
        values[-1] += penalty
        found.append(values)
    return found
