"""Finds the groups that the next batch waits for, and predicts when they will be generated.

Invariants: pure, the core is not changed; lengths and speeds are the core's own predictions, at the load of
this moment; without a prediction of the core there is none here.
"""

from typing import NamedTuple

from controller.core.core import Core
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.told import ToldInstance
from strategies.cost_model import COST_MODELS, Coefficients, prefill_s, step_latency

UNDER_WAY = ("generating", "scoring")


class Awaited(NamedTuple):
    """A group that the next batch waits for."""

    group: Group
    is_due: bool  # the batch cannot go without it
    left_s: float | None  # seconds of generating that are left; None if not known


def awaited_groups(core: Core) -> list[Awaited]:
    """Groups that are due now, and those nearest to their end beside them, as many as the batch lacks."""
    state, ledger = core.state, core.state.ledger
    under_way = [
        group
        for group in state.groups.values()
        if group.state in UNDER_WAY and not group.is_evaluation and group.id in ledger
    ]
    due_now = indispensable(core)
    under_way.sort(key=lambda group: (group.id not in due_now, _tokens_left(core, group), group.id))
    count = max(len(due_now), ledger.batch_groups - ledger.occupied, 0)
    paces = _paces(core)
    return [Awaited(group, group.id in due_now, _left_s(core, group, paces)) for group in under_way[:count]]


def indispensable(core: Core) -> set[int]:
    """Groups without which the next batch cannot go; none where it waits for no straggler."""
    ledger = core.state.ledger
    return set() if ledger.spare_groups else set(ledger.blockers())


def batch_left_s(core: Core, awaited: list[Awaited]) -> float | None:
    """Seconds until the last awaited group is generated; None if not known, or if groups have not started."""
    ledger = core.state.ledger
    if ledger.batch_groups - ledger.occupied > len(awaited):
        return None  # the rest has not started
    lefts = [one.left_s for one in awaited]
    known = [left_s for left_s in lefts if left_s is not None]
    return max(known, default=0.0) if len(known) == len(lefts) else None


def expected(core: Core, group: Group) -> list[int]:
    """Predicted tokens of each response of a group."""
    return [
        member.response_tokens
        if member.state == "finished"
        else max(member.response_tokens, core.state.expected_tokens(group, member))
        for member in group.members
        if member.state != "dropped"
    ]


def _tokens_left(core: Core, group: Group) -> int:
    """Tokens that a group still needs, as predicted; -1 if it only waits for its rewards."""
    return -1 if group.state == "scoring" else sum(expected(core, group)) - group.response_tokens


class InstancePace(NamedTuple):
    """The speed of an instance."""

    begin_s: float  # until it gives tokens again: the rest of a pull, and prompts that are computed anew
    token_s: float  # in which a response that runs there gets its next token
    coefficients: Coefficients


def _paces(core: Core) -> dict[str, InstancePace]:
    """The paces of instances whose speed is known, by peer."""
    is_given = core.state.config.staleness.cost_model not in COST_MODELS  # of which one is being fitted
    found: dict[str, InstancePace] = {}
    for instance in core.state.registry.instances():
        if instance.fit is None and not is_given:
            continue  # nothing of it is known yet
        coefficients = instance.fit.coefficients if instance.fit else core.state.coefficients
        token_s = step_latency(coefficients, max(1, len(instance.running)), instance.resident_tokens)
        found[instance.peer] = InstancePace(_begin_s(core, instance, coefficients), token_s, coefficients)
    return found


def _begin_s(core: Core, instance: Instance, coefficients: Coefficients) -> float:
    """Seconds until an instance generates again: a pull takes as long as its last one, then it prefills."""
    told, count = instance.told, len(instance.running)
    if instance.pulling is None or not isinstance(told, ToldInstance) or told.pulling is None:
        return 0.0
    left_s = max(0.0, instance.pull_s - (core.state.now - told.pulling.since))
    if core.state.config.staleness.keep_kv or not count:
        return left_s
    return left_s + count * prefill_s(coefficients, instance.resident_tokens / count)


def _left_s(core: Core, group: Group, paces: dict[str, InstancePace]) -> float | None:
    """Seconds until the group's last response is generated, without scoring; None if not known."""
    if group.state == "scoring":
        return 0.0
    if group.episodes or core.state.config.is_colocated:
        return None  # waits for environments and for a shared device are not predicted
    lefts = [
        _response_left_s(core, group, member, paces)
        for member in group.members
        if member.state in ("queued", "running")
    ]
    known = [left_s for left_s in lefts if left_s is not None]
    return max(known, default=0.0) if len(known) == len(lefts) else None


def _response_left_s(
    core: Core, group: Group, member: Trajectory, paces: dict[str, InstancePace]
) -> float | None:
    """Seconds of a response; a queued one counts as if an instance of the mean pace began it now."""
    tokens = max(0, core.state.expected_tokens(group, member) - member.response_tokens)
    worker = None if member.peer is None else core.state.registry.workers.get(member.peer)
    pace = paces.get(worker.peer) if isinstance(worker, Instance) else _mean(list(paces.values()))
    if pace is None:
        return None
    begins_s = 0.0 if member.response_tokens else prefill_s(pace.coefficients, group.prompt_tokens)
    return pace.begin_s + begins_s + tokens * pace.token_s


def _mean(paces: list[InstancePace]) -> InstancePace | None:
    if not paces:
        return None
    begin_s, token_s = (sum(column) / len(paces) for column in list(zip(*paces, strict=True))[:2])
    return InstancePace(begin_s, token_s, paces[0].coefficients)
