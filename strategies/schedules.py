"""The mixture weights of the sources of prompts: `schedule(view) -> weights`, one per source, from 0 up.

Weights are relative, and their sum is finite; a source that has ended is left out, whatever its weight. They
are computed when prompts are read, which is some batches before these are trained.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

FLOOR = 0.1  # of a source that is always or never solved: it is still read, so that a change shows


class SourceView(NamedTuple):
    """One source of prompts."""

    name: str
    weight: float  # as configured
    read: int  # prompts so far
    scored: int  # groups so far, with those that a filter dropped
    pass_rate: float  # share of the responses to its last prompts that passed; 0.5 before the first


class MixtureView(NamedTuple):
    """The input of a schedule."""

    step: int  # train steps made
    sources: tuple[SourceView, ...]
    stages: tuple[tuple[int, tuple[float, ...]], ...] = ()  # (first train step, weights), in order


Schedule = Callable[[MixtureView], Sequence[float]]


def constant(view: MixtureView) -> list[float]:
    """The weights as they are configured."""
    return [source.weight for source in view.sources]


def stages(view: MixtureView) -> Sequence[float]:
    """The weights of the last stage that has begun."""
    return next((weights for first, weights in reversed(view.stages) if first <= view.step), constant(view))


def ramp(view: MixtureView) -> Sequence[float]:
    """The weights of a stage at its first step, and linearly on to the next stage's."""
    later = next((stage for stage in view.stages if stage[0] > view.step), None)
    first, weights = next(
        ((first, weights) for first, weights in reversed(view.stages) if first <= view.step), (0, ())
    )
    if later is None or not weights:
        return stages(view)
    share = (view.step - first) / (later[0] - first)
    return [now + share * (then - now) for now, then in zip(weights, later[1], strict=True)]


def by_pass_rate(view: MixtureView) -> list[float]:
    """The configured weights, times how much the policy can still learn from a source.

    That is the variance of passing, largest if half of the responses pass.
    """
    return [
        source.weight * max(FLOOR, 4 * source.pass_rate * (1 - source.pass_rate)) for source in view.sources
    ]


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "stages": stages,
    "ramp": ramp,
    "pass_rate": by_pass_rate,
}
