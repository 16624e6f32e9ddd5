"""Strategies by name, or by the user's import path."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.importing import load_object
from strategies import own
from strategies.admission import ADMISSIONS
from strategies.filtering import FILTERS
from strategies.migration import MIGRATIONS
from strategies.own import Promise, held
from strategies.routing import ROUTINGS
from strategies.synchronization import SYNCHRONIZATIONS

STRATEGIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "routing": ROUTINGS,
    "synchronization": SYNCHRONIZATIONS,
    "migration": MIGRATIONS,
    "admission": ADMISSIONS,
    "filter": FILTERS,
}
"""What is built in, by the key of `staleness` that names it."""

PROMISES = {
    "routing": Promise(
        ("work", "instances", "settings"),
        "the `index` of one of these instances, or None to leave the work queued",
        "strategies/routing.py",
        own.index,
    ),
    "synchronization": Promise(
        ("instances", "settings"),
        "a list of the `index` of those that pull now, or []",
        "strategies/synchronization.py",
        own.indices,
    ),
    "migration": Promise(
        ("instances", "running", "settings"),
        "a list of the `index` of the trajectories that move, or []",
        "strategies/migration.py",
        own.moves,
    ),
    "admission": Promise(
        ("view", "batches"),
        "how many groups may start now, a number",
        "strategies/admission.py",
        own.amount,
    ),
    "filter": Promise(
        ("rewards",),
        "True to train on the group, or False to drop it",
        "strategies/filtering.py",
        own.verdict,
    ),
}
ORDER = Promise(
    ("instance", "settings"),
    "a number or a tuple of numbers, smallest first",
    "strategies/routing.py",
    own.sort_key,
)


def select(field: str, name: str) -> Any:
    """The strategy that the key `staleness.FIELD` names: built in, or the function at an import path, held to
    its promise. Raises: ConfigError."""
    if name in STRATEGIES[field]:
        return STRATEGIES[field][name]
    function = load_object(name)
    strategy: Any = held(function, PROMISES[field], key=f"staleness.{field}")
    if field == "routing" and (order := getattr(function, "order", None)) is not None:
        strategy.order = held(order, ORDER, key="staleness.routing (its `order`)")
    return strategy
