"""Rewards that the episodes of a group reported themselves, of single turns and in total.

Invariant: pure.
"""

from collections.abc import Sequence
from math import fsum, isclose

from controller.core.state.groups import Group

RewardParts = tuple[tuple[str, tuple[float, ...]], ...]
"""Named rewards: the value of each response."""


def is_rewarded(group: Group) -> bool:
    """Whether all episodes reported their rewards, so that none has to be scored."""
    return bool(group.episodes) and all(episode.reward is not None for episode in group.kept_episodes)


def places_to_score(group: Group) -> list[int]:
    """Places among `kept` of the responses that the reward function is asked for, in order.

    Of an agent only episodes without a reward of their own: the messages of others, which told a reward or
    whose environment was silent for too long, are not kept. Older releases asked for all of a group.
    """
    kept = group.kept_episodes
    is_told = any(episode.earned == "scored" for episode in kept)
    return [place for place in range(group.size) if not is_told or kept[place].reward is None]


def take_rewards(group: Group, scored: Sequence[float] = (), parts: RewardParts = ()) -> None:
    """Set the rewards of a group's responses: those that its episodes reported, else those `scored`.

    `scored` and the values of each of `parts` are of `places_to_score`; another response has no part.
    """
    kept, asked = group.kept_episodes, places_to_score(group)

    def placed(values: Sequence[float]) -> dict[int, float]:
        return dict(zip(asked, values, strict=False))  # no value, where none is to be scored

    found = [(name, placed(values)) for name, values in parts]
    group.reward_parts = tuple((name, tuple(map(values.get, range(group.size)))) for name, values in found)
    answers = placed(scored)
    own = [answers.get(place, 0.0) if one.reward is None else one.reward for place, one in enumerate(kept)]
    group.rewards = tuple(own) if group.episodes else tuple(scored)
    told = [dict(one.parts) for one in kept]
    names = [name for name in told[0] if all(name in part for part in told)] if told else []
    if names:
        group.reward_parts = tuple((name, tuple(part[name] for part in told)) for name in sorted(names))


def says_what_turns_earned(group: Group) -> bool:
    """Whether any episode says if its reward was earned by turns or at its end.

    Older releases did not report this, and it is unknown for an episode that timed out.
    """
    return any(episode.earned for episode in group.kept_episodes)


def turn_rewards(group: Group, penalties: Sequence[float] = ()) -> list[list[float]]:
    """The reward of each turn of each response; a reward earned at the end counts at the last turn.

    `penalties`: of each response, added at its last turn; () means none.
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
            # an episode of an older release in a group that has newer ones: all must compare alike
            is_told and not episode.earned and isclose(reward, fsum(values))
        )
        values[-1] += 0.0 if is_of_turns else reward
        values[-1] += penalty
        found.append(values)
    return found
