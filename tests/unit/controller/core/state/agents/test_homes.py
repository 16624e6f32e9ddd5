"""Where the next turn of an episode goes, and what a pull costs those that wait for their environments."""

import pytest

from controller.core.state.agents.homes import home
from protocol import messages
from tests.support.agent_run import AgentRun

LONG = {"max_prompt_tokens": 9000, "max_running": 8}


def run_of(**sections) -> AgentRun:
    """One episode's first turn has ended on one of two instances, with a context of 8,000 tokens."""
    run = AgentRun(instances=2, rollout=LONG | {"instances": 2}, **sections)
    run.say("rollout-1", messages.Pulled(0, "digest", 0.1))
    for peer in ("rollout-0", "rollout-1"):
        run.core.state.registry.equip(instance(run, peer), capacity=8, kv_tokens=100_000)
        run.core.state.registry.changed[peer] = None
    for group in (0, 1):
        for episode in (0, 1):
            run.ask(group, episode, given=8000 if (group, episode) == (0, 0) else 3)
    return run


def instance(run, peer):
    return run.core.state.registry.workers[peer]


def finish_turn(run, group=0, episode=0):
    """Where its turn ended."""
    peer = run.member(group, episode).peer
    run.generate(run.routes[group, episode], 4, peer=peer)
    return peer


def test_a_turn_goes_home_though_another_instance_has_less_to_do():
    run = run_of()
    there = finish_turn(run)
    assert run.member().home == there
    assert instance(run, there).parked == {run.member().id: 8004}
    other = next(peer for peer in ("rollout-0", "rollout-1") if peer != there)
    for episode in range(2):  # the other one becomes idle
        for group in (0, 1):
            if run.member(group, episode).peer == other:
                finish_turn(run, group, episode)
    assert not instance(run, other).running
    run.ask(given=3)
    assert run.member().peer == there
    assert not instance(run, there).parked.get(run.member().id)


def test_without_affinity_it_goes_where_it_adds_most():
    run = run_of(staleness={"max_staleness": 1, "mu": 0.0, "synchronization": "greedy", "affinity": False})
    there = finish_turn(run)
    other = next(peer for peer in ("rollout-0", "rollout-1") if peer != there)
    for group, episode in ((0, 1), (1, 0), (1, 1)):
        if run.member(group, episode).peer == other:
            finish_turn(run, group, episode)
    assert instance(run, there).running
    assert not instance(run, other).running
    run.ask(given=3)
    assert run.member().peer == other


@pytest.mark.parametrize("keep_kv", [False, True])
def test_an_instance_that_pulls_is_no_home_unless_kv_is_kept(keep_kv):
    run = run_of(staleness={"max_staleness": 2, "mu": 0.0, "synchronization": "status", "keep_kv": keep_kv})
    there = finish_turn(run)
    registry, found = run.core.state.registry, instance(run, there)
    assert home(registry, run.member(), keeps_kv=keep_kv) == (found.id, 8004)
    found.pulling = 1
    assert (home(registry, run.member(), keeps_kv=keep_kv) == (-1, 0)) != keep_kv
    registry.has_pulled(found, keeps_kv=keep_kv)
    assert bool(found.parked) == keep_kv
    assert (home(registry, run.member(), keeps_kv=keep_kv) == (-1, 0)) != keep_kv


def test_a_lost_instance_is_no_home_and_its_turn_goes_elsewhere():
    run = run_of()
    there = finish_turn(run)
    run.say(there, messages.Detach("it goes"))
    assert home(run.core.state.registry, run.member(), keeps_kv=False) == (-1, 0)
    run.ask(given=3)
    assert run.member().peer not in (None, there)


def test_a_pull_costs_what_is_parked_for_those_that_go_on_and_nothing_for_those_that_are_over():
    run = run_of()
    there = instance(run, finish_turn(run))
    view = run.core.pulls._view(there, 0)
    assert (view.parked, view.parked_tokens) == (1, 8004)
    run.end()
    assert run.core.pulls._view(there, 0).parked_tokens == 0
    assert run.core.pulls._view(there, 0).restart_s < view.restart_s
    assert not there.parked


def test_what_was_interrupted_has_no_home():
    run = run_of()
    peer = run.member().peer
    run.generate(run.routes[0, 0], 2, "interrupt", peer=peer)
    assert run.member().home is None
    assert not instance(run, peer).parked
