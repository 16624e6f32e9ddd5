"""What an image of a core may hold: which classes, and the tags of their values.

Invariant: reading an image makes objects of CLASSES only. An image is used only by the release that made it
(see `controller.durability.snapshots`), so the shapes in it are all the version that it needs.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import NamedTuple

from controller.config import data as data_settings
from controller.config import evaluation as evaluation_settings
from controller.config import limits as limit_settings
from controller.config import models
from controller.config.sections import staleness as staleness_settings
from controller.core import core, postponed
from controller.core.decisions.evaluation import evaluation_placement, evaluation_schedule
from controller.core.decisions.placement import (
    dispatch,
    migration,
    report_pace,
    reports,
    shared_device,
    stragglers,
)
from controller.core.decisions.supply import (
    episode_starts,
    prompt_order,
    scoring,
    supervised,
    training_groups,
)
from controller.core.decisions.supply import episodes as episode_decisions
from controller.core.decisions.training import logprob_drift, trainer_batches, training
from controller.core.decisions.versions import publication, pulls, relay_tree
from controller.core.decisions.workers import (
    limits,
    lost_instances,
    membership,
    plausibility,
    reattachment,
)
from controller.core.effects import evaluation_rounds, futile_groups, purposes
from controller.core.state import (
    accounts,
    asks,
    dispatch_queue,
    evaluation_report,
    groups,
    kept_samples,
    leases,
    ledger,
    policy_versions,
    recent_failures,
    registry,
    run_state,
    source_mixture,
    told,
)
from controller.core.state.agents import episode_figures, episodes, told_agents
from controller.core.state.batches import (
    contributions,
    counting_ledger,
    disposal,
    figures,
    in_order_ledger,
    windows,
)
from controller.core.state.batches.contributions import Batch
from controller.core.state.progress import columns, trajectory
from controller.core.state.views import candidates, choices, instances
from protocol import ids, settings
from protocol.agents import settings as agent_settings
from protocol.messages import (
    device,
    from_agents,
    from_controller,
    from_workers,
    pieces,
    progress,
    to_agents,
)
from protocol.trainer import settings as trainer_settings
from strategies import cost_model, fitting, instance_kinds, lengths, pacing, views
from strategies.batches import prompt_lengths

MODULES = (
    accounts, agent_settings, asks, candidates, choices, columns, contributions, core, counting_ledger,
    data_settings, dispatch, disposal, figures, kept_samples, staleness_settings, trajectory,
    dispatch_queue, episode_decisions, episode_figures, episode_starts, episodes,
    evaluation_placement, evaluation_report, evaluation_rounds, evaluation_schedule, evaluation_settings,
    futile_groups, groups, in_order_ledger, instances, leases, ledger, limit_settings, limits, logprob_drift,
    lost_instances, membership, migration,
    models, plausibility, policy_versions, postponed, publication, pulls, purposes, reattachment,
    recent_failures, registry,
    prompt_lengths, prompt_order, relay_tree, report_pace, reports, run_state, scoring, shared_device,
    source_mixture, stragglers, supervised, told, told_agents, trainer_batches, training, training_groups,
    device, from_agents, from_controller, from_workers, pieces, progress, to_agents, ids, settings,
    trainer_settings, cost_model, fitting, instance_kinds, lengths, pacing, views, windows,
)  # fmt: skip
CLASSES: dict[str, type] = {
    f"{module.__name__}.{name}": kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
"""What an image may hold beside plain values and containers."""

REFERENCE, TUPLE, LIST, DICT, SET, DEQUE, COUNTER, ARRAY, NUMBER, MODEL, PACKED = range(11)
FIRST_SHAPE = 16  # tags from here on are places in the list of shapes
NAMES = {kind: name for name, kind in CLASSES.items()}
PACKED_ALONE = frozenset((Batch,))
"""Immutable, large and long-lived: packed once, not with each image."""
COMPILED = "__mypyc_attrs__"  # an attribute of classes that mypyc has made: the names of their objects'
PLAIN = frozenset((int, float, str, bytes, bool, type(None)))
"""Types of values that are written unchanged."""

Shape = tuple[str, tuple[str, ...]]
"""A class, and the attributes of an object of it."""


class InParts(NamedTuple):
    """An image with the objects that are packed alone beside it: images of one run share most of these."""

    skeleton: bytes
    parts: tuple[bytes, ...]


@cache
def attributes_of(kind: type) -> tuple[str, ...] | None:
    """The names of the attributes of all objects of a class; None if they differ by object."""
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # pyright: ignore[reportAttributeAccessIssue]  # named ones alone are here
    if "__slots__" not in vars(kind) and not (is_compiled(kind) and is_dataclass(kind)):
        return None
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else tuple(kind.__slots__)


def attributes_in(one: object) -> list[str]:
    """The names of the attributes that an object has, of a class whose objects differ by them."""
    kind = type(one)
    if not is_compiled(kind):
        return sorted(vars(one))
    names: tuple[str, ...] = getattr(kind, COMPILED, ())
    return sorted(name for name in names if hasattr(one, name))


def is_compiled(kind: type) -> bool:
    """Whether mypyc has made the class: its objects have neither slots nor a `__dict__`."""
    return hasattr(kind, COMPILED)
