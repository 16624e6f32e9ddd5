"""Adapts the number of groups in the system and the routing threshold mu: `adapt(step) -> (cap, mu)`.

Invariants: pure functions of what was measured between two batches; a step that was not measured changes
nothing; the cap of `adaptive` stays between LEAST_BATCHES and the window of the bound, its mu between 0 and
`staleness.mu`.
"""

from collections.abc import Callable, Iterable
from math import inf
from statistics import fmean
from typing import NamedTuple

from strategies.cost_model import throughput
from strategies.views import AdmissionView, InstanceView

PERIOD_MEMORY = 0.3  # weight of the last train step in the mean time between two


class Pace(NamedTuple):
    """Averages over the train steps so far. Units: groups, seconds, shares of a step."""

    cap: float  # groups in the system allowed by the adaptive rule of admission
    starved: float = 0.0  # mean share of a step in which the trainer waits for groups
    late: float = 0.0  # mean share in which it waits for stragglers
    period_s: float | None = None  # mean time between two batches; None before the second
    periods: tuple[float, ...] = ()  # of the last window, oldest first


class Objective(NamedTuple):
    """The limits that `staleness.objective` sets for the cap."""

    most_batches: float = inf  # in the system; the mean staleness is about this less 1
    least_gain: float = 0.0  # share of throughput that one more batch, a version of mean age, must bring


THROUGHPUT = Objective()
FRESH = Objective(most_batches=2.0)  # a mean staleness of 1


class StepView(NamedTuple):
    """One train step, from a batch to the next, as input of the adaptation. Shares are of the step."""

    pace: Pace  # including this step
    admission: AdmissionView
    mu: float  # the current routing threshold
    most_mu: float  # `staleness.mu`
    adapts_mu: bool  # `staleness.adaptive_mu`
    gated: float = 0.0  # share in which an admitted fresh group found no instance
    long_share: float = 0.0  # share of responses near the longest; 0 without `adapts_mu`
    elasticity: float = 1.0  # relative gain in tokens/s for a relative gain in trajectories
    objective: Objective = THROUGHPUT
    waiting: float = 0.0  # share of the episodes in flight that wait for their environments


def objective_of(wanted: str | float) -> Objective:
    """The limits for a value of `staleness.objective`."""
    if isinstance(wanted, str):
        return FRESH if wanted == "fresh" else THROUGHPUT
    return Objective(least_gain=wanted)


Adaptation = Callable[[StepView], tuple[float, float]]


def adaptive(step: StepView) -> tuple[float, float]:
    """The fewest groups that keep the trainer busy, and a mu that evens instances out at no cost."""
    starved, late = step.pace.starved, step.pace.late
    mu = step.mu
    if step.adapts_mu:
        mu = next_mu(mu, most=step.most_mu, starved=starved, late=late, gated=step.gated,
                      long_share=step.long_share)  # fmt: skip
    cap = next_cap(
        step.admission, starved=starved, late=late, elasticity=step.elasticity, objective=step.objective,
        waiting=step.waiting,
    )  # fmt: skip
    return cap, mu


def fixed(step: StepView) -> tuple[float, float]:
    """Keep cap and mu as they are."""
    return step.admission.cap, step.mu


ADAPTATIONS: dict[str, Adaptation] = {"adaptive": adaptive, "fixed": fixed}


# -- what is measured ------------------------------------------------------------------------------------


def after_step(pace: Pace, *, period_s: float, starved_s: float, late_s: float, window: int) -> Pace:
    """The pace with one more step.

    `period_s`: from a batch to the next, of which the trainer waited `starved_s` for groups and then `late_s`
    for stragglers; `window`: steps that are remembered.
    """
    starved, late, mean = starved_s / period_s, late_s / period_s, pace.period_s
    return pace._replace(
        starved=pace.starved + PERIOD_MEMORY * (starved - pace.starved),
        late=pace.late + PERIOD_MEMORY * (late - pace.late),
        period_s=period_s if mean is None else mean + PERIOD_MEMORY * (period_s - mean),
        periods=(*pace.periods, period_s)[-window:],
    )


def is_tail_bound(pace: Pace, before: bool) -> bool:
    """Whether the trainer waits for the longest responses more than for groups.

    Unchanged (`before`) if it waits for neither.
    """
    return pace.late > pace.starved if max(pace.starved, pace.late) > LATE else before


def hold_s(pace: Pace, *, evenness: float, window: int) -> float:
    """Seconds after a batch before which the next one is not consumed, in steps that are bound by the tail.

    If the longest responses decide the speed, early steps make them late for a step that then has to wait:
    the mean is the same, but instances are crowded in the early steps and empty in the wait. So a step comes
    no sooner than `evenness` times the mean of the last `window` steps, once there were so many.
    """
    return evenness * fmean(pace.periods) if evenness > 0 and len(pace.periods) >= window else 0.0


def elasticity(views: Iterable[InstanceView]) -> float:
    """Relative gain in tokens/s for a relative gain in running trajectories, over all instances."""
    now = more = 0.0
    for view in views:
        if view.running:
            here = throughput(view.coefficients, view.running, view.resident_tokens)
            one_more = view.resident_tokens * (1 + 1 / view.running)
            now += here
            more += throughput(view.coefficients, view.running + 1, one_more) * view.running
            more -= here * view.running
    return more / now if now else 1.0


# -- the rules -------------------------------------------------------------------------------------------

GROW, SHRINK = 0.2, 0.03  # of a batch, at each train step: a missing place costs speed, a spare one age
DRIFT = 0.01  # where the trainer does not wait the cap falls by this, to be as small as possible
STARVED = 0.02  # share of a step that the trainer may wait for groups before the cap grows
LATE = 0.05  # share of a step that it may wait before that changes mu, and stragglers make the cap shrink
LEAST_ELASTICITY = 0.1
MOST_WAITING = 0.8  # share of waiting that counts: the cap grows by at most a batch a step
LEAST_BATCHES = 1.25  # with less, the trainer stands still from its step to the first group of the next


def first_cap(*, max_staleness: int, batch_groups: int, spare_groups: int = 0) -> float:
    """The initial cap: two batches, for a mean staleness near 1, if the bound admits it."""
    return min(2.0, max_staleness + 1.0) * (batch_groups + spare_groups)


def next_cap(
    view: AdmissionView, *, starved: float, late: float, elasticity: float, objective: Objective = THROUGHPUT,
    waiting: float = 0.0,
) -> float:  # fmt: skip
    """The adaptive cap after a train step.

    It grows while the trainer waits for *groups* (`starved`: share of a step in which fewer than a batch were
    occupied) and more of them would raise the throughput of the instances (`elasticity`: relative gain in
    tokens per second for a relative gain in trajectories); it shrinks while the trainer waits for stragglers
    (`late`), which the others slow down; and it drifts down while the trainer waits for nothing, since then
    groups only grow old. `objective` limits it, and says how much more of them have to raise it. Of agents,
    a share `waiting` of what is added is at no instance, so it grows faster.
    """
    places = view.batch_groups + view.spare_groups
    gain = elasticity * places / view.cap
    if starved > STARVED and elasticity > LEAST_ELASTICITY and gain >= objective.least_gain:
        step = GROW / (1 - min(waiting, MOST_WAITING))  # only this share of a place is at an instance
    else:
        step = -SHRINK if late > LATE else -DRIFT
    window = view.max_staleness + 1.0
    least, most = min(LEAST_BATCHES, window), min(objective.most_batches, window)
    return min(most * places, max(least * places, view.cap + step * places))


MU_STEP = 0.05  # at each train step: from its default to 0 in six
GATED = 0.3  # share of a step in which admitted groups find no instance; beyond it they start too late
MANY_LONG = 0.06  # share of responses near the longest beyond which one of them is likely among late starters


def next_mu(mu: float, *, most: float, starved: float, late: float, gated: float, long_share: float) -> float:
    """The routing threshold after a train step.

    Work that mu keeps back starts where others have ended, which evens instances out, but starts late. So mu
    falls if work is kept back for much of a step, or the trainer waits for groups, since then tokens per
    second count; and if so many responses are about as long as the longest (`long_share`) that some of them
    are kept back: the trainer would wait for these. It rises again while the trainer waits for stragglers,
    which crowded instances slow down.
    """
    if gated > GATED or starved > max(late, LATE) or long_share > MANY_LONG:
        return max(0.0, round(mu - MU_STEP, 9))
    return min(most, round(mu + MU_STEP, 9)) if late > LATE else mu
