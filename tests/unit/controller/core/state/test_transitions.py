"""The tables of states: what they say is whole, what they do not have is refused, and their page is drawn."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from controller.core.state import transitions
from controller.core.state.groups import Group
from controller.core.state.policy_versions import PolicyVersions, Published
from controller.core.state.registry import Registry
from controller.core.state.transitions import GONE, MACHINES, VERSION
from protocol.messages import Attach

ROOT = Path(__file__).resolve().parents[5]
MOVES = {
    "group": transitions.move_group,
    "trajectory": transitions.move_trajectory,
    "worker": transitions.move_worker,
}


def next_of(machine, state, event):
    """The state after an event, by the function that production calls."""
    if machine is VERSION:
        return transitions.next_of_version(7, state, event)
    thing = SimpleNamespace(id=7, name=7, state=state)
    try:
        MOVES[machine.subject](thing, event)
    except AssertionError:
        assert thing.state == state, "a refused move has changed the state"
        raise
    return thing.state


def pairs(machine):
    return [(state, event) for state in machine.states for event in machine.events]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.subject)
def test_every_pair_of_state_and_event_goes_where_the_table_says_or_is_refused_by_name(machine):
    for state, event in pairs(machine):
        target = machine.moves.get(state, {}).get(event)
        if target is not None:
            assert next_of(machine, state, event) == target
            continue
        with pytest.raises(AssertionError, match=f"{machine.subject} 7 is {state} and was {event}"):
            next_of(machine, state, event)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.subject)
def test_a_table_names_the_states_and_events_of_its_types_and_reaches_them_all(machine):
    kinds = {
        "group": (transitions.GroupState, transitions.GroupEvent),
        "trajectory": (transitions.TrajectoryState, transitions.TrajectoryEvent),
        "worker": (transitions.WorkerState, transitions.WorkerEvent),
        "policy version": (transitions.VersionState, transitions.VersionEvent),
    }
    states, events = kinds[machine.subject]
    assert set(machine.states) == set(get_args(states))
    assert set(machine.events) == set(get_args(events))
    assert {event for row in machine.moves.values() for event in row} == set(machine.events)
    reached, todo = {machine.begins}, [machine.begins]
    while todo:
        for target in machine.moves.get(todo.pop(), {}).values():
            if target not in reached:
                reached.add(target)
                todo.append(target)
    assert reached == set(machine.states)
    assert GONE not in machine.moves, "what is gone moves again"


def test_a_group_that_is_gone_cannot_be_scored():
    group = Group(3)
    transitions.move_group(group, "refused")
    with pytest.raises(AssertionError, match=r"group 3 is gone and was scored, .* expected nothing"):
        transitions.move_group(group, "scored")


def test_a_worker_is_ready_or_absent_by_its_state_alone():
    registry = Registry()
    worker = registry.attach("a", Attach("rollout", "node", 1, "here"), 0.0)
    assert (worker.state, worker.ready, worker.is_absent) == ("attached", False, False)
    registry.make_ready(worker)
    assert (worker.state, worker.ready, registry.ready_instances) == ("ready", True, 1)
    registry.make_absent(worker, 1.0, 10.0)
    assert (worker.ready, worker.is_absent, registry.ready_instances) == (False, True, 0)
    registry.check()
    registry.remove("a")
    assert worker.state == GONE


def test_a_check_names_a_state_that_the_rest_of_the_thing_contradicts():
    group = Group(3)
    group.state = "scoring"
    with pytest.raises(AssertionError, match="group 3 is scoring, of version None"):
        group.check()
    registry = Registry()
    registry.attach("a", Attach("trainer", "trainer", 1, "here"), 0.0).state = "absent"
    with pytest.raises(AssertionError, match="trainer is absent"):
        registry.check()


def test_only_the_newest_version_can_be_lost_and_a_newer_one_takes_its_place():
    versions = PolicyVersions()
    versions.publish(Published(0, "v0", "digest"))
    versions.lose(0)
    versions.check()
    assert (versions.state(0), versions.state(1)) == ("lost", "hidden")
    versions.publish(Published(1, "v1", "digest"))
    assert (versions.state(0), versions.state(1)) == ("visible", "visible")
    versions._states[0] = "lost"
    with pytest.raises(AssertionError, match="0 is lost"):
        versions.check()


def test_the_page_of_the_states_is_up_to_date():
    words = "import make_states as m; print(m.render() == open('states.md').read())"
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=ROOT / "docs", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True", "run: python docs/make_states.py"
