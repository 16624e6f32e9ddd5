"""Admission: how many groups may start now, which starts next, and how many may be in the system.

Invariant: pure functions of the state; nothing is kept between two calls.
"""

from controller.core.state.run_state import RunState
from strategies.admission import Claim, first_to_start
from strategies.views import AdmissionView


def admission_view(state: RunState) -> AdmissionView:
    """The state as admission rules see it."""
    ledger, newest = state.ledger, state.versions.newest
    return AdmissionView(
        ledger.max_staleness,
        ledger.batch_groups,
        ledger.train_version,
        newest.policy_version if newest else 0,
        ledger.reserved,
        ledger.occupied,
        state.started,
        state.pulled_version,
        state.started - state.started_at_pull,
        state.in_system_at_pull,
        ledger.spare_groups,
        state.pace.cap,
        state.strategy_settings.is_tail_bound,
        state.config.staleness.objective == "fresh",
    )


def admitted(state: RunState) -> int:
    """Groups that the admission rule lets start now; none while the run is paused."""
    if state.paused is not None:
        return 0
    return state.strategies.admit(admission_view(state), state.config.staleness.in_flight_batches)


def batches_in_flight(state: RunState) -> float:
    """The batches of groups that may be in the system now, by the rule that holds; for advice to people."""
    staleness, ledger = state.config.staleness, state.ledger
    limit = staleness.in_flight_batches
    if staleness.admission != "window" or limit == "all":
        return ledger.max_staleness + 1.0
    return state.pace.cap / ledger.batch_groups if isinstance(limit, str) else limit


def next_fresh(state: RunState) -> int:
    """The waiting group that starts next: the first, unless sources have priorities or quotas.

    Call it only while one waits.
    """
    sources = state.config.data.sources
    if not any(one.is_ranked for one in sources):
        return state.fresh[0]
    waiting = (state.groups[group].source for group in state.fresh)
    claims = [Claim(one.priority, one.quota) for one in sources]
    in_system = [state.ledger.by_source.get(number, 0) for number in range(len(sources))]
    return state.fresh[first_to_start(waiting, in_system, claims)]


def admissible(state: RunState) -> int:
    """Groups that may start now under the newest version."""
    newest = state.versions.newest
    if newest is None or not state.fresh:
        return 0
    room = min(len(state.fresh), admitted(state))
    return max(0, min(room, state.ledger.headroom(newest.policy_version)))


def is_closed(state: RunState) -> bool:
    """Whether admission lets nothing start while no group is in progress.

    A rule that counts from the last pull might then wait for the next pull for ever.
    """
    ledger, newest = state.ledger, state.versions.newest
    if newest is None or newest.policy_version < ledger.train_version or ledger.reserved or state.paused:
        return False
    is_shut = bool(state.fresh) and admitted(state) <= 0
    return is_shut and not ledger.is_ready()
