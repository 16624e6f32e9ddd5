"""Explains the core's decisions at one event: each call of a strategy, and the answer.

Invariant: a core from just before the event takes the event again, with its own strategies in wrappers, so
the answers are those of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller.core.core import Core
from controller.core.state.registry import Instance
from controller.durability.replay import shortened
from controller.history import reasons, reasons_of_data
from controller.history.compare_strategies import LABELS, answer_in_words, subject
from controller.history.reasons import Reasons
from strategies.kinds import Strategies
from strategies.own import as_given
from strategies.routing import Routing
from strategies.views import WorkView

TOLD = LABELS | {"sample": "sampler", "schedule": "schedule", "credit": "turn advantages"}
"""Names of the decisions for people, by the field of `Strategies`."""
MOST = 100  # decisions of one event that are explained
MOST_ROWS = 64  # candidates of one decision
Row = tuple[str, str, float | None, bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """One call of a strategy, with its answer and the reasons."""

    kind: str  # name for people: routing, admission, ...
    about: str
    answer: str
    rule: str  # "" for a strategy of the user's
    rows: tuple[Row, ...]  # candidate, why, worth (None: excluded), whether it was chosen


def why(core: Core, step: Callable[[Core], object]) -> list[Decision]:
    """The decisions of one event. `core` is from just before the event; `step(core)` takes the event."""
    found: list[Decision] = []
    own = core.state.strategies

    def watched(name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
        def deciding(*arguments: Any) -> Any:
            given = tuple(map(as_given, arguments))
            answer = decide(*arguments)
            if len(found) < MOST:
                found.append(_told(core, own, name, given, answer))
            return answer

        return deciding

    core.state.strategies = replace(
        own,
        route=Routing(watched("route", own.route.choose), own.route.order),
        **{name: watched(name, getattr(own, name)) for name in TOLD if name != "route"},
    )
    try:
        step(core)
    finally:
        core.state.strategies = own
    return _merged(found)


def _told(core: Core, own: Strategies, name: str, arguments: tuple[Any, ...], answer: Any) -> Decision:
    explained = _reasons(own, name, arguments)
    words = answer_in_words(name, answer, arguments, core)
    about = subject(name, arguments[0])
    if explained is None:
        shown = tuple((f"argument {place + 1}", text, None, False) for place, text in _shown(arguments))
        return Decision(TOLD[name], about, words, "", shown[:MOST_ROWS])
    rows = [
        (core.state.registry.instance(one.id).name, one.why, one.worth, one.is_chosen)
        for one in explained.candidates
    ]
    rows.sort(key=lambda row: (not row[3], row[2] is None, -(row[2] or 0.0)))
    if name == "route":
        rows += _excluded(core, arguments[0], {instance.id for instance in arguments[1]})
    return Decision(TOLD[name], about, words, explained.rule, tuple(rows[:MOST_ROWS]))


def _reasons(own: Strategies, name: str, arguments: tuple[Any, ...]) -> Reasons | None:
    """The reasons of a built-in strategy; None for the user's own."""
    match name:
        case "route":
            return reasons.of_routing(own.route.choose, *arguments)
        case "admit":
            return reasons.of_admission(own.admit, *arguments)
        case "synchronize":
            return reasons.of_synchronization(own.synchronize, *arguments)
        case "keep":
            return reasons.of_filter(own.keep, *arguments)
        case "migrate":
            return reasons.of_migration(own.migrate, *arguments)
        case "adapt":
            return reasons.of_pacing(own.adapt, *arguments)
        case "sample":
            return reasons_of_data.of_sampling(own.sample, *arguments)
        case "schedule":
            return reasons_of_data.of_schedule(own.schedule, *arguments)
        case "credit":
            return reasons.of_credit(own.credit, *arguments)
        case _:
            return None


def _excluded(core: Core, work: WorkView, asked: set[int]) -> list[Row]:
    """Instances that were not among the strategy's arguments, and the rule that excluded them."""
    rows: list[Row] = []
    for instance in core.state.registry.instances():
        if instance.id not in asked:
            rows.append((instance.name, _off_limits(instance, work), None, False))
    return rows


def _off_limits(instance: Instance, work: WorkView) -> str:
    if not instance.is_routable:
        return "not ready" if not instance.ready else "it has no weights yet"
    if instance.next_version < work.min_version:
        return f"its v{instance.next_version} is older than v{work.min_version}, which the work needs"
    if len(instance.running) >= instance.capacity:
        return f"full: {len(instance.running)} of {instance.capacity} run there"
    return "not among the first of its version in the strategy's own order"


def _shown(arguments: Sequence[Any]) -> list[tuple[int, str]]:
    return [(place, shortened(repr(argument))) for place, argument in enumerate(arguments)]


def _merged(found: list[Decision]) -> list[Decision]:
    """The decisions without duplicates, as the core may repeat a call within one step."""
    return list(dict.fromkeys(found))
