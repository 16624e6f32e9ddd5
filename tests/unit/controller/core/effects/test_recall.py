"""The end of an attempt and of a group: queue, ledger, registry and accounts agree afterwards."""

from controller.core.commands import DropPayload, Send
from controller.core.effects import recall
from protocol.messages import Abort, Interrupt
from tests.support.core_run import Run


def started():
    """Two groups of two members and a spare one each: all of the first run, and one of the second."""
    run = Run(staleness={"max_staleness": 1, "mu": 0.0, "synchronization": "greedy", "spare_responses": 1})
    routes = run.start_groups()
    assert [(route.group, route.member) for route in routes] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    return run, run.core.state, routes


def sent(state, kind):
    return [c.message for c in state.take_commands() if isinstance(c, Send) and isinstance(c.message, kind)]


def test_a_removed_group_is_nowhere_any_more():
    run, state, _ = started()
    group = state.groups[1]
    recall.remove(state, group, "aborted")
    commands = state.take_commands()
    assert Send("rollout-0", Abort(((1, 0, 1),))) in commands
    assert commands[-1] == DropPayload((1,))
    assert 1 not in state.groups
    assert 1 not in state.ledger
    assert not state.queue
    assert sorted(id.group for id in state.registry.workers["rollout-0"].running) == [0, 0, 0]
    assert (state.started, state.accounts.counts["groups/aborted"]) == (1, 1)
    run.core.check()


def test_no_reward_worker_keeps_a_removed_group():
    _, state, _ = started()
    worker = state.registry.workers["reward-0"]
    worker.encoding.add(1)
    recall.remove(state, state.groups[1], "aborted")
    assert 1 not in worker.encoding


def test_a_withdrawn_group_is_the_next_to_start_and_has_no_token():
    run, state, routes = started()
    run.generate(routes[3], 4, None)
    group = state.groups[1]
    recall.withdraw(state, group)
    assert sent(state, Abort) == [Abort(((1, 0, 1),))]
    assert state.fresh[0] == 1
    assert [member.response_tokens for member in group.members] == [0, 0, 0]
    assert group.policy_version is None
    assert 1 not in state.ledger
    assert (len(state.queue), state.started) == (0, 1)


def test_a_withdrawn_group_counts_as_dropped_with_the_tokens_that_it_had():
    run, state, routes = started()
    run.generate(routes[3], 4, None)
    group = state.groups[1]
    state.windows.open([group])
    recall.withdraw(state, group)
    recall.remove(state, group, "aborted")  # it has not started again, so this drops nothing
    figures = state.windows.figures()
    assert figures["sampler/dropped_length"] == 4 / 3
    assert figures["sampler/dropped_share"] == 1.0


def test_a_group_that_is_cut_short_asks_for_what_runs_and_ends_what_waits_with_tokens():
    run, state, routes = started()
    run.generate(routes[3], 4, None)
    group = state.groups[1]
    recall.cut_short(state, group)
    assert sent(state, Interrupt) == [Interrupt(((1, 0, 1),))]
    assert group.members[1].state == "queued", "it has no token, and so nothing to train"
    recall.take_back(state, state.registry.workers["rollout-0"], [group.members[0].id])
    assert group.members[0].state == "finished"
    assert group.members[0].response_tokens == 4


def test_a_member_that_waits_with_tokens_ends_where_it_is_when_its_group_is_cut_short():
    run, state, routes = started()
    run.generate(routes[3], 4, None)
    group = state.groups[1]
    recall.take_back(state, state.registry.workers["rollout-0"], [group.members[0].id])
    assert len(state.queue) == 3
    recall.cut_short(state, group)
    assert (group.members[0].state, group.members[0].response_tokens) == ("finished", 4)
    assert len(state.queue) == 2


def test_an_interrupted_member_waits_again_unless_it_is_as_long_as_it_may_be():
    run, state, routes = started()
    run.generate(routes[0], 10, None)
    instance = state.registry.workers["rollout-0"]
    recall.take_back_all(state, instance)
    assert [member.state for member in state.groups[0].members] == ["finished", "queued", "queued"]
    assert not instance.running
    assert len(state.queue) == 5
    run.core.check()


def test_spare_members_are_called_back_when_their_group_is_complete():
    run, state, routes = started()
    run.generate(routes[0], 3)
    run.generate(routes[1], 3)
    assert run.sent(Abort) == [Abort(((0, 2, 1),))]
    assert state.groups[0].members[2].state == "dropped"


def test_attempts_are_listed_by_the_instance_that_runs_them():
    _, state, _ = started()
    members = [member for group in state.groups.values() for member in group.members]
    assert recall.by_peer(members) == {"rollout-0": ((0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1))}
    assert recall.by_peer(member for member in members if member.peer is None) == {}
