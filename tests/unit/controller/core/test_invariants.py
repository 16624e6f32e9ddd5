"""Invariants that span modules see what is broken."""

import pytest

from protocol.messages import Segment
from tests.support.core_run import Run
from tests.unit.controller.durability.image.test_freezer import some_core


def test_what_is_due_before_the_last_event_was_decided_upon():
    run = Run()
    rests, due = run.core.state.versions.rests, run.core.state.now - 0.001
    rests.add("rollout-0", 0, due + 0.001)
    run.core.check()
    rests.add("rollout-0", 0, due)
    with pytest.raises(AssertionError, match=f"due at {due} was not decided upon"):
        run.core.check()


def running_ones(core):
    """Responses that are generated, of which something is told, and their instances."""
    for instance in core.state.registry.instances():
        for id in instance.running:
            member = core.state.groups[id.group].members[id.member]
            if member.segments:
                yield member, instance


def told_more(core):
    member, _ = next(running_ones(core))
    member.response_tokens += 1


def told_as_given(core):
    member, _ = next(running_ones(core))
    member.given_tokens += 1


def of_an_older_version(core):
    member, _ = next(running_ones(core))
    last = member.segments[-1]
    member.stand_alone()
    member._segments[-1:] = [Segment(last.attempt, 9, 0), last]


def held_twice(core):
    _, instance = next(running_ones(core))
    instance.resident_tokens += 1


def evaluated(core):
    _, instance = next(running_ones(core))
    instance.evaluating += 1


def generated(core):
    core.state.accounts.generated += 1


def in_flight(core):
    core.state.accounts.generated += 1
    core.state.accounts.in_flight += 1


def elsewhere(core):
    member, instance = next(running_ones(core))
    member.peer = next(i.peer for i in core.state.registry.instances() if i is not instance)


def without_its_group(core):
    member, _ = next(running_ones(core))
    del core.state.groups[member.id.group]


def at_two_instances(core):
    """The one that it has left has it still, and not its tokens."""
    member, instance = next(running_ones(core))
    other = next(i for i in core.state.registry.instances() if i is not instance)
    core.state.registry.busy_instances += not other.running
    core.state.registry.running += 1
    other.running[member.id] = instance.running[member.id]


def counted_as_running(core):
    core.state.registry.running += 1


def in_each_others_place(core):
    member, _ = next(running_ones(core))
    members = core.state.groups[member.id.group].members
    members[0], members[1] = members[1], members[0]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (told_more, r"has \d+ tokens"),
        (told_as_given, r"has \d+ given tokens"),
        (of_an_older_version, "versions of .* decrease"),
        (held_twice, r"rollout-\d: \d+ != \d+"),
        (evaluated, r"rollout-\d: \d+ evaluations"),
        (generated, "the token ledger does not close"),
        (in_flight, "tokens accounted"),
        (elsewhere, "is not at"),
        (without_its_group, "run at instances, and"),
        (at_two_instances, "run at instances, and|is not at"),  # by the order of the instances
        (counted_as_running, "responses counted at instances"),
        (in_each_others_place, "is member 0 of group"),
    ],
)
def test_what_does_not_agree_is_named(broken, words):
    core = some_core()
    core.check()
    broken(core)
    with pytest.raises(AssertionError, match=words):
        core.check()
