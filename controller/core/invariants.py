"""Assertions of the invariants that span modules; each module asserts its own invariants itself.

Invariant: nothing is changed. The simulator calls this after every event; a real run calls it at least every
minute, in a forked copy of its process (`controller.durability.fork`).
"""

from collections import Counter
from typing import TYPE_CHECKING

from controller.core.liveness import check_liveness
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.run_state import RunState
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import GIVEN

if TYPE_CHECKING:
    from controller.core.core import Core


def check_invariants(core: "Core") -> None:
    """Check all invariants. Raises: AssertionError that names the broken one."""
    state = core.state
    state.ledger.check()
    due = [state.ledger.deadline(id) for id in core.training.trainer_batches.ahead]
    assert due == [state.ledger.train_version] * len(due), "what is trained ahead may miss its batch"
    core.evaluation.check()
    state.versions.check()
    state.registry.check()
    running = {id: i.peer for i in state.registry.instances() for id in i.running}
    in_flight, resident = 0, Counter[PeerId]()
    for group in state.groups.values():
        _check_group(state, group, is_trained=group.id in core.training.batch)
        in_flight += _check_members(state, group, running, resident)
    there = sum(m.state == "running" for group in state.groups.values() for m in group.members)
    entries = sum(len(instance.running) for instance in state.registry.instances())
    assert there == entries, f"{entries} trajectories run at instances, and {there} are there"
    _check_tokens(state, in_flight)
    _check_sources(state)
    _check_instances(state, resident)
    core.relay_tree.check()
    core.shared_device.check()
    core.dispatch.check()
    core.episodes.check()
    check_liveness(core)
    until = core.next_deadline()
    assert until is None or until >= state.now, (
        f"what was due at {until} was not decided upon; it is {state.now}"
    )


def _check_tokens(state: RunState, in_flight: int) -> None:
    """Every generated token is counted exactly once."""
    tokens = state.accounts.tokens()
    assert tokens.in_flight == in_flight, f"{tokens.in_flight} tokens accounted, {in_flight} there"
    spent = tokens.trained + tokens.aborted + tokens.filtered + tokens.lost + tokens.evaluated
    assert tokens.generated == spent + in_flight, f"the token ledger does not close: {tokens}"


def _check_group(state: RunState, group: Group, *, is_trained: bool) -> None:
    """A group is in the ledger and in the batch exactly if its state says so."""
    group.check()
    assert (group.state == "training") == is_trained, f"group {group.id}"
    in_ledger = group.state in ("generating", "scoring", "occupied") and not group.is_evaluation
    assert in_ledger == (group.id in state.ledger), f"group {group.id} is {group.state}"
    is_kept = in_ledger and state.ledger.is_strict and not state.ledger.spare_groups
    assert not is_kept or state.ledger.deadline(group.id) >= state.ledger.train_version


def _check_sources(state: RunState) -> None:
    """The ledger counts the groups of each source of prompts correctly."""
    there = Counter(group.source for group in state.groups.values() if group.id in state.ledger)
    counted = +Counter(state.ledger.by_source)
    assert counted == there, f"groups by source: {dict(there)}, and the ledger counts {dict(counted)}"


def _check_members(
    state: RunState, group: Group, running: dict[TrajectoryId, PeerId], resident: Counter[PeerId]
) -> int:
    """Each trajectory is in one place, and its versions never decrease.

    Returns the group's tokens in flight; adds the tokens that each instance holds of it to `resident`.
    """
    is_generating = group.state == "generating"
    in_flight = 0
    for place, member in enumerate(group.members):
        assert member.id == (group.id, place), f"{member.id} is member {place} of group {group.id}"
        peer = member.peer
        assert (member.state == "running") == (member.id in running), f"{member.id} is {member.state}"
        assert running.get(member.id) == peer, f"{member.id} is not at {peer}"
        is_queued = member.state == "queued" and is_generating
        is_held = state.queue.holds(member) or state.held_out_queue.holds(member)
        assert is_queued == is_held, f"{member.id} is {member.state}"
        segments = member.segments
        newest, sampled, given = 0, 0, 0
        for _, policy_version, count in segments:
            if policy_version == GIVEN:
                given += count
                continue
            assert policy_version >= newest, f"versions of {member.id} decrease: {segments}"
            newest, sampled = policy_version, sampled + count
        assert member.given_tokens == given, f"{member.id} has {given} given tokens"
        assert member.response_tokens == sampled, f"{member.id} has {sampled} tokens"
        if peer is not None:
            resident[peer] += member.prompt_tokens + given + sampled
        if member.state != "dropped":  # tokens of dropped ones are accounted already
            in_flight += sampled
    return in_flight


def _check_instances(state: RunState, resident: Counter[PeerId]) -> None:
    """The counters of each instance agree with what runs there."""
    for instance in state.registry.instances():
        evaluating = sum(id.group >= FIRST_EVALUATION_GROUP for id in instance.running)
        assert instance.evaluating == evaluating, f"{instance.name}: {instance.evaluating} evaluations"
        assert instance.resident_tokens == resident[instance.peer], (
            f"{instance.name}: {instance.resident_tokens} != {resident[instance.peer]}"
        )
