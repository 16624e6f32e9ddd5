"""Contributions of scored groups to their batch: figures, and items for the trainer.

Invariants: a contribution is made once, when its group is scored, so a batch is merged from few numbers;
lengths, rewards and figures are per response (an episode is one response, however many trajectories it has);
items are per trajectory.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from controller.core.state.agents.episode_figures import EpisodeFigures
from protocol.messages import GIVEN, TrainItem
from strategies.batches.spreads import spread

if TYPE_CHECKING:
    from controller.core.state.groups import Group, Trajectory


class Contribution(NamedTuple):
    """Contribution of one scored group."""

    items: tuple[TrainItem, ...]
    lengths: tuple[int, ...]
    first_versions: dict[int, int]  # version of the first token -> trajectories that have one
    cut: int  # responses that did not end by themselves
    partial: int  # trajectories of several policy versions
    reward_sum: float
    reward_squares: float  # squared differences from the group's own mean
    reward_parts: dict[str, tuple[float, int]]  # sums of named rewards, and how many responses have one
    source: int = 0  # number of the source of its prompt
    episodes: tuple[EpisodeFigures, ...] = ()  # of an agent
    spread: float = 0.0  # exact variance of its rewards
    oldest: int = 0  # version of its oldest token


class Batch(NamedTuple):
    """The groups and items from which one policy version is made."""

    train_version: int
    groups: tuple[int, ...]
    items: tuple[TrainItem, ...]


def contribution_of(group: "Group") -> Contribution:
    """The contribution of a group that has rewards and outcomes."""
    trained, places, mean = list(group.trained), group.places, fmean(group.rewards)
    return Contribution(
        items=tuple(_item(group, member, places[group.response_of(member)]) for member in trained),
        lengths=tuple(group.response_lengths),
        first_versions=dict(Counter(member.first_version for member in trained if member.segments)),
        cut=sum(member.ending == "length" for member in group.kept),
        partial=sum(map(_is_partial, trained)),
        reward_sum=sum(group.rewards),
        reward_squares=sum((reward - mean) ** 2 for reward in group.rewards),
        reward_parts={name: (sum(values), len(values)) for name, values in scored_parts(group)},
        source=group.source,
        episodes=tuple(
            EpisodeFigures.of([m for m in group.of(episode) if m.state == "finished"], episode)
            for episode in group.kept_episodes
        ),
        spread=spread(group.rewards),
        oldest=group.oldest_token_version(),
    )


def scored_parts(group: "Group") -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Named rewards, each of the responses that it scored."""
    parts = group.reward_parts
    return tuple((name, tuple([one for one in values if one is not None])) for name, values in parts)


def ages_of(contributions: Sequence[Contribution], train_version: int) -> Counter[int]:
    """Trajectories of a batch by staleness of their first token; those without tokens are left out."""
    counts: dict[int, int] = {}
    for contribution in contributions:
        for version, count in contribution.first_versions.items():
            counts[version] = counts.get(version, 0) + count
    return Counter({train_version - version: count for version, count in counts.items()})


def _item(group: "Group", member: "Trajectory", place: int) -> TrainItem:
    return TrainItem(
        group.id,
        member.id.member,
        member.prompt_tokens,
        group.rewards[place],
        group.outcomes[place],
        member.ending,
        tuple(member.segments),
        group.response_of(member),
        _segment_outcomes(group, place, member),
    )


def _segment_outcomes(group: "Group", place: int, member: "Trajectory") -> tuple[float, ...]:
    """The advantage of each segment, if turns have advantages of their own; else ()."""
    if not group.turn_outcomes:
        return ()
    places = {key: turn for turn, key in enumerate(group.episode_of(member.id.member).trained_turns)}
    found: list[float] = []
    number = -1
    for segment in member.segments:
        number += segment.is_given
        turn = places[member.id.member, max(number, 0)]
        found.append(0.0 if segment.is_given else group.turn_outcomes[place][turn])
    return tuple(found)


def _is_partial(member: "Trajectory") -> bool:
    """Whether it has tokens of several policy versions."""
    return len({version for _, version, _ in member.segments if version != GIVEN}) > 1
