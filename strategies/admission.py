"""How many groups may start now, and which one first: a cap besides the deadline.

A rule is `admit(view, batches) -> groups`.

The ledger keeps the bound; admission chooses how much of its room to use. The rules of other systems are here
for comparison on one engine; those of AReaL and veRL bound a total, not the age of a trajectory. Source of
these rules: AReaL (arXiv 2505.24298), veRL (fully asynchronous trainer), ROLL Flash, as implemented in
DryRun-RL, the simulator of StaleFlow's authors; a cap besides the deadline is ours.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from strategies.views import AdmissionView

Batches = Any  # in_flight_batches: a number, or a word that the rule knows
InFlightBatches = float | Literal["auto", "all"]
"""Values of `staleness.in_flight_batches`."""
Admission = Callable[[AdmissionView, Batches], int]

WHATEVER_FITS = 1 << 30  # groups: routing leaves those without room in the queue
VERL_THRESHOLD = 0.1  # share of stale samples that veRL's fully asynchronous trainer admits by default
VERL_SYNC_STEPS = 4  # train steps between two parameter updates of its rollout, by default


class Claim(NamedTuple):
    """The priority and the share of places of one source of prompts (`data.sources`)."""

    priority: int = 0
    quota: float = 1.0  # share of the groups in the system


def first_to_start(waiting: Iterable[int], in_system: Sequence[int], claims: Sequence[Claim]) -> int:
    """The index of the waiting prompt that starts first.

    It is of the source with the highest priority among those within their quotas; of equal sources, the
    prompt that has waited longest. A source beyond its quota only gives way to other sources: places are
    never left empty for it. A source without a group in the system may always start one.

    `waiting`: the source of each prompt, in order; `in_system`: groups of each source that have started and
    are not trained. Raises: ValueError if no prompt waits.
    """
    first: dict[int, int] = {}
    for place, source in enumerate(waiting):
        first.setdefault(source, place)
        if len(first) == len(claims):
            break
    most = sum(in_system) + 1

    def rank(source: int) -> tuple[bool, int, int]:
        claim, there = claims[source], in_system[source]
        return bool(there) and there + 1 > claim.quota * most, -claim.priority, first[source]

    return first[min(first, key=rank)]


def held(view: AdmissionView) -> int:
    """Groups in the system, including trained ones whose version is not published yet.

    A group that starts while the trainer works carries the old version and wastes one deadline, so the places
    of a batch are free only when the version that it made is published.
    """
    unpublished = view.batch_groups * (view.train_version - view.published_version)
    return view.generating + view.occupied + unpublished


def by_cap(view: AdmissionView, batches: float) -> int:
    """A fixed number of batches in the system: the mean staleness is about `batches` - 1."""
    return round(batches * (view.batch_groups + view.spare_groups)) - held(view)


def adaptive(view: AdmissionView, batches: InFlightBatches) -> int:
    """Like `by_cap`, with the cap that strategies/pacing.py has found.

    Trained groups count until their version is published, if deadlines decide the speed or freshness is
    wanted; otherwise a later start would gain nothing.
    """
    del batches
    holds = view.is_tail_bound or view.is_fresh
    return round(view.cap) - (held(view) if holds else view.generating + view.occupied)


def whole_window(view: AdmissionView, batches: InFlightBatches) -> int:
    """All groups that the ledger has room for: the paper's protocol, with a mean staleness near the bound."""
    del batches
    places = view.batch_groups + view.spare_groups
    return (view.max_staleness + 1) * places - view.generating - view.occupied


def one_batch(view: AdmissionView, batches: InFlightBatches) -> int:
    """A whole batch at a time; the next one starts when the last goes to the trainer.

    The rule of synchronous and one-step systems.
    """
    del batches
    return view.batch_groups + view.spare_groups - view.generating - view.occupied


def areal(view: AdmissionView, batches: InFlightBatches) -> int:
    """AReaL's capacity: (max_staleness + version + 1) batches ever started. Bounds the mean age only."""
    del batches
    return (view.max_staleness + view.published_version + 1) * view.batch_groups - view.started


def roll_flash(view: AdmissionView, batches: InFlightBatches) -> int:
    """ROLL Flash: (max_staleness + 1) batches running or complete; groups that grow too old are dropped."""
    del batches
    return (view.max_staleness + 1) * view.batch_groups - view.generating - view.occupied


def prime_rl(view: AdmissionView, batches: InFlightBatches) -> int:
    """prime-rl: as many groups as the instances have room for; groups that grow too old are dropped.

    Its limits on the dispatcher's lead over the trainer and on rollouts in flight (`max_inflight_rollouts`)
    are left out: more is started here than there, and more is dropped.
    """
    del view, batches
    return WHATEVER_FITS


def verl_async(view: AdmissionView, batches: InFlightBatches) -> int:
    """veRL, fully asynchronous: a quota per parameter update, less the groups in the system at that time."""
    del batches
    quota = int(view.batch_groups * (1 + VERL_THRESHOLD) * VERL_SYNC_STEPS)
    return quota - view.in_system_at_pull - view.started_since_pull


def window_rule(batches: InFlightBatches) -> Admission:
    """The admission rule `window` for a value of `staleness.in_flight_batches`."""
    return {"auto": adaptive, "all": whole_window}.get(str(batches), by_cap)


def window(view: AdmissionView, batches: InFlightBatches) -> int:
    """The groups that `staleness.in_flight_batches` allows: a number, the adaptive cap, or the whole window.

    `batches` is read on each call, because a resumed run may have another value.
    """
    return window_rule(batches)(view, batches)


ADMISSIONS: dict[str, Admission] = {
    "window": window,
    "one_batch": one_batch,
    "areal": areal,
    "roll_flash": roll_flash,
    "prime_rl": prime_rl,
    "verl_async": verl_async,
}
