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


def a_running_one(core):
    """A response that an instance generates, and that instance."""
    instance = next(one for one in core.state.registry.instances() if one.running)
    id = next(id for id in instance.running if core.state.groups[id.group].members[id.member].segments)
    return core.state.groups[id.group].members[id.member], instance


def told_more(core):
    member, _ = a_running_one(core)
    member.response_tokens += 1


def told_as_given(core):
    member, _ = a_running_one(core)
    member.given_tokens += 1


def of_an_older_version(core):
    member, _ = a_running_one(core)
    last = member.segments[-1]
    member.stand_alone()
    member._segments[-1:] = [Segment(last.attempt, 9, 0), last]


def held_twice(core):
    _, instance = a_running_one(core)
    instance.resident_tokens += 1


def counted_twice(core):
    core.state.accounts.generated += 1


def at_no_instance(core):
    member, _ = a_running_one(core)
    member.peer = None


def without_its_group(core):
    member, _ = a_running_one(core)
    group = core.state.groups[member.id.group]
    group.members.remove(member)


def without_itself(core):
    member, instance = a_running_one(core)
    del instance.running[member.id]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (told_more, "tokens"),
        (told_as_given, "given tokens"),
        (of_an_older_version, "versions of .* decrease"),
        (held_twice, "!="),
        (counted_twice, "does not close|tokens accounted"),
        (at_no_instance, "is not at|is running, at None"),
        (without_its_group, "and .* are there|members"),
        (without_itself, "^$"),  # the registry has no words for it
    ],
)
def test_what_does_not_agree_is_named(broken, words):
    core = some_core()
    core.check()
    broken(core)
    with pytest.raises(AssertionError, match=words):
        core.check()
