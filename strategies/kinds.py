"""The kinds of strategies: the built-in ones of each, and the interface of a user's.

Invariant: strategies are not looked up by name here: controller/config/strategies.py does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strategies import own
from strategies.admission import ADMISSIONS, Admission
from strategies.batches.samplers import SAMPLERS, Sampler
from strategies.filtering import FILTERS, Filter
from strategies.migration import MIGRATIONS, Migration
from strategies.outcomes import TURN_ADVANTAGES, TurnAdvantages
from strategies.own import Foreign, Promise, held
from strategies.pacing import ADAPTATIONS, Adaptation
from strategies.routing import ROUTINGS, Routing
from strategies.schedules import SCHEDULES, Schedule
from strategies.synchronization import SYNCHRONIZATIONS, Synchronization


@dataclass(frozen=True)
class Strategies:
    """The strategies of one run: made by the core's host, and passed to the core."""

    route: Routing
    admit: Admission
    migrate: Migration
    synchronize: Synchronization
    keep: Filter
    schedule: Schedule
    adapt: Adaptation
    sample: Sampler
    credit: TurnAdvantages


STRATEGIES: dict[str, Mapping[str, object]] = {
    "routing": ROUTINGS,
    "synchronization": SYNCHRONIZATIONS,
    "migration": MIGRATIONS,
    "admission": ADMISSIONS,
    "filter": FILTERS,
    "schedule": SCHEDULES,
    "pacing": ADAPTATIONS,
    "sampler": SAMPLERS,
    "turn_advantages": TURN_ADVANTAGES,
}
"""Built-in strategies, by the key of `staleness`, or of the section in SECTIONS, that names them."""
SECTIONS = {"schedule": "data", "turn_advantages": "agent"}

PROMISES = {
    "routing": Promise(
        ("work", "instances", "settings"),
        "the `id` of one of these instances, or None to leave the work queued",
        "strategies/routing.py",
        own.instance_id,
    ),
    "synchronization": Promise(
        ("instances", "settings"),
        "a list of the `id` of those that pull now, or []",
        "strategies/synchronization.py",
        own.instance_ids,
    ),
    "migration": Promise(
        ("instances", "running", "settings"),
        "a list of the `id` of the trajectories that move, or []",
        "strategies/migration.py",
        own.moved_ids,
    ),
    "admission": Promise(
        ("view", "batches"),
        "how many groups may start now, a number (a fraction counts as the next whole one)",
        "strategies/admission.py",
        own.amount,
    ),
    "filter": Promise(
        ("rewards",),
        "True to train on the group, or False to drop it",
        "strategies/filtering.py",
        own.verdict,
    ),
    "schedule": Promise(
        ("view",),
        "a list of numbers from 0 up, one per source in its `sources`, not all 0, whose sum is finite",
        "strategies/schedules.py",
        own.weights,
    ),
    "pacing": Promise(
        ("step",),
        "(cap, mu): groups in the system, of which a batch is always let in, and a mu of 0 to 1",
        "strategies/pacing.py",
        own.cap_and_mu,
    ),
    "sampler": Promise(
        ("view",),
        "the places of all its `prompts` from 0 up, each once, in the order in which they start",
        "strategies/batches/samplers.py",
        own.order_of_all,
    ),
    "turn_advantages": Promise(
        ("view",),
        "a list for each episode in its `rewards`, of a finite number for each turn of it",
        "strategies/outcomes.py",
        own.numbers_of_turns,
    ),
}
ORDER = Promise(
    ("instance", "settings"),
    "a number or a tuple of numbers, smallest first",
    "strategies/routing.py",
    own.sort_key,
)


def key_of(field: str) -> str:
    """The key of the configuration that names a strategy of this kind."""
    return f"{SECTIONS.get(field, 'staleness')}.{field}"


def hold(field: str, strategy: Foreign) -> Foreign:
    """Wrap a user's strategy for the key `key_of(field)` with checks of its answers. Raises: ConfigError.

    A routing is a `Routing`, or a function that may have an attribute `order`.
    """
    key = key_of(field)
    if field != "routing":
        return held(strategy, PROMISES[field], key=key)
    choose = strategy.choose if isinstance(strategy, Routing) else strategy
    order = getattr(strategy, "order", None)
    return Routing(
        held(choose, PROMISES[field], key=key),
        None if order is None else held(order, ORDER, key=f"{key} (its `order`)"),
    )
