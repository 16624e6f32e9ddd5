"""Which groups the next batch waits for, and in how many seconds they will be generated.

Invariants: pure, and nothing is changed; lengths and speeds are those that the core itself predicts, at the
load of this moment; where the core has no prediction there is none here.
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
    left_s: float | None  # of generating; None where nobody knows


def awaited_groups(core: Core) -> list[Awaited]:
    """Those that are due now, and as many of those nearest to their end as the batch lacks beside them."""
    state, ledger = core.state, core.state.ledger
    under_way = [
        group
        for group in state.groups.values()
        if group.state in UNDER_WAY and not group.is_evaluation and group.id in ledger
    ]
    due_now = {group.id for group in under_way if ledger.deadline(group.id) <= ledger.train_version}
    under_way.sort(key=lambda group: (group.id not in due_now, _tokens_left(core, group), group.id))
    count = max(len(due_now), ledger.batch_groups - ledger.occupied, 0)
    paces = _paces(core)
    return [Awaited(group, group.id in due_now, _left_s(core, group, paces)) for group in under_way[:count]]


def batch_left_s(core: Core, awaited: list[Awaited]) -> float | None:
    """Until the last of them is generated; None if that, or who else it will be, is not known."""
    ledger = core.state.ledger
    if ledger.batch_groups - ledger.occupied > len(awaited):
        return None  # the rest has not started
    lefts = [one.left_s for one in awaited]
    known = [left_s for left_s in lefts if left_s is not None]
    return max(known, default=0.0) if len(known) == len(lefts) else None


def expected(core: Core, group: Group) -> list[int]:
    """Tokens that its responses will have, as predicted."""
    return [
        member.response_tokens
        if member.state == "finished"
        else max(member.response_tokens, core.state.expected_tokens(group, member))
        for member in group.members
        if member.state != "dropped"
    ]


def _tokens_left(core: Core, group: Group) -> int:
    """Tokens that it is expected to need still; fewer than any if it only waits for its rewards."""
    return -1 if group.state == "scoring" else sum(expected(core, group)) - group.response_tokens


class InstancePace(NamedTuple):
    """How an instance gets on."""

    begin_s: float  # until it gives tokens again: the rest of a pull, and prompts that are computed anew
    token_s: float  # in which a response that runs there gets its next token
    coefficients: Coefficients


def _paces(core: Core) -> dict[str, InstancePace]:
    """Of the instances whose speed is known, by peer."""
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
    """A pull takes what the last one took, and empties the KV cache unless that is kept."""
    told, count = instance.told, len(instance.running)
    if instance.pulling is None or not isinstance(told, ToldInstance) or told.pulling is None:
        return 0.0
    left_s = max(0.0, instance.pull_s - (core.state.now - told.pulling.since))
    if core.state.config.staleness.keep_kv or not count:
        return left_s
    return left_s + count * prefill_s(coefficients, instance.resident_tokens / count)


def _left_s(core: Core, group: Group, paces: dict[str, InstancePace]) -> float | None:
    """Until its last response is generated; rewards apart."""
    if group.state == "scoring":
        return 0.0
    if group.episodes or core.state.config.is_colocated:
        return None  # nobody predicts an environment, or when the device changes hands
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
    """A response that waits in the queue is taken as if an instance of the mean pace began it now."""
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
