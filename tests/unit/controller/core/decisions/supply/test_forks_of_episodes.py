"""Episodes of several trajectories: edited histories and sub-agents, as the core sees them."""

import pytest

from controller.core.commands import ReportStep
from controller.core.state.agents.episode_rewards import turn_rewards
from protocol import messages
from protocol.messages import Close
from tests.support.agent_run import AgentRun

FORK = 2  # the number of the second trajectory of episode 0, of two


def forked(**sections) -> AgentRun:
    """Episode 0 has had a turn in its first trajectory, and one in a second."""
    run = AgentRun(**sections)
    run.ask_all()
    run.sample(0, 0, 4)
    run.ask(0, 0, fork=1, given=6, digest="other")
    run.sample(0, FORK, 2)
    return run


def end_group(run: AgentRun, rewards=(1.0, 0.0)):
    """Both episodes come to their ends."""
    run.sample(0, 1, 3)
    run.end(0, 0, rewards[0])
    run.end(0, 1, rewards[1])
    return run.core.state.groups[0]


def test_each_trajectory_of_an_episode_is_trained_once_with_the_reward_of_the_episode():
    group = end_group(forked())
    items = group.contribute().items
    assert [(item.member, item.episode) for item in items] == [(0, 0), (FORK, 0), (1, 1)]
    assert [item.reward for item in items] == [1.0, 1.0, 0.0]
    assert [sum(s.count for s in item.segments if not s.is_given) for item in items] == [4, 2, 3]
    assert all(item.segments[0].is_given for item in items)
    assert group.size == 2
    assert group.contribute().lengths == (6, 3), "an episode is as long as all that was sampled in it"


def test_the_baseline_counts_episodes_and_not_trajectories():
    group = end_group(forked(trainer={"batch_groups": 2, "advantage_scale": "none"}))
    assert group.rewards == (1.0, 0.0)
    assert group.outcomes == (0.5, -0.5)
    assert [item.outcome for item in group.contribute().items] == [0.5, 0.5, -0.5]


def test_two_asks_of_an_episode_are_open_at_once_and_its_environment_waits_for_both():
    run = AgentRun()
    run.ask_all((0,))
    run.ask(0, 0, fork=1, digest="other")
    episode = run.core.state.groups[0].episodes[0]
    run.sample(0, FORK)
    assert run.turns[0, FORK].member == FORK
    assert episode.until is None, "the policy has the word in the other trajectory"
    run.sample(0, 0)
    assert episode.until is not None
    run.ask(0, 0, fork=1, digest="more")
    run.ask(0, 0)
    run.sample(0, 0)
    assert (run.turns[0, 0].number, run.turns[0, FORK].number) == (1, 0)


def test_a_fork_before_the_group_has_a_place_waits_with_it():
    run = AgentRun()
    run.ask(0, 0)
    run.ask(0, 0, fork=1, digest="other")
    assert run.routes == {}
    run.ask(0, 1)
    assert set(run.routes) == {(0, 0), (0, FORK), (0, 1)}


def test_what_is_open_at_the_end_is_aborted_in_each_trajectory():
    run = forked()
    run.ask(0, 0)
    run.ask(0, 0, fork=2, digest="third")
    group = end_group(run)
    assert [item.member for item in group.contribute().items] == [0, FORK, 1]
    assert group.members[FORK + 2].state == "dropped"
    assert run.core.state.accounts.in_flight == 9


def test_an_episode_whose_first_trajectory_has_no_turn_is_trained_by_the_others():
    run = AgentRun()
    run.ask_all((0,))
    run.ask(0, 0, fork=1, digest="other")
    run.sample(0, FORK, 2)
    group = end_group(run)
    assert [(item.member, item.episode) for item in group.contribute().items] == [(FORK, 0), (1, 1)]
    assert group.rewards == (1.0, 0.0)


def test_untrained_calls_are_sampled_and_answered_and_in_no_batch():
    run = AgentRun()
    run.ask_all()
    run.sample(0, 0, 4)
    run.ask(0, 0, fork=1, digest="title", is_trained=False)
    run.sample(0, FORK, 2)
    assert run.turns[0, FORK].segments[0].count == 2
    group = end_group(run)
    assert [item.member for item in group.contribute().items] == [0, 1]
    assert run.core.state.accounts.filtered == 2
    assert run.counts["episodes/forks"] == 0


def test_forks_are_counted_by_their_cause_and_told_with_the_step():
    run = AgentRun(trainer={"batch_groups": 1})
    run.ask_all((0,))
    run.sample(0, 0)
    run.ask(0, 0, fork=1, digest="edited", cause="edited")
    run.sample(0, FORK)
    run.ask(0, 0, fork=2, digest="summary", cause="compacted")
    run.sample(0, 2 * FORK)
    run.ask(0, 0, fork=3, digest="title", cause="branched", is_trained=False)
    run.sample(0, 3 * FORK)
    run.sample(0, 1)
    for episode in (0, 1):
        run.end(0, episode, float(episode))
    counts = {name: count for name, count in run.counts.items() if "forks" in name}
    assert counts == {"episodes/forks": 2, "episodes/forks_edited": 1, "episodes/forks_compacted": 1}
    [line] = [
        command.metrics
        for command in run.say("trainer", messages.TrainStepFinished(1, 0.5, ()))
        if isinstance(command, ReportStep)
    ]
    forks = {name: value for name, value in line.items() if name.startswith("agent/forks/")}
    assert forks == {
        "agent/forks/edited": 0.5, "agent/forks/template": 0.0, "agent/forks/compacted": 0.5,
        "agent/forks/branched": 0.0,
    }  # fmt: skip


def test_a_lost_worker_repeats_all_trajectories_in_whatever_order():
    run = forked(agents=2)
    run.ask(0, 0, fork=2, digest="third")
    before = run.core.state.accounts.generated
    at = run.worker_of(0, 0)
    run.lose(at)
    assert run.begins[0, 0].known == 3
    run.ask(0, 0)
    assert run.turns[0, 0].number == 0
    run.ask(0, 0, fork=1, given=6, digest="other")
    assert [s.count for s in run.turns[0, FORK].segments] == [2]
    run.ask(0, 0, fork=2, digest="third")
    assert (0, 4) not in run.turns, "it is being sampled still"
    run.sample(0, 4, 1)
    assert run.turns[0, 4].attempt == run.routes[0, 4].attempt
    assert run.core.state.accounts.generated == before + 1
    assert run.counts["episodes/diverged"] == 0


def test_another_fork_than_before_diverges_and_nothing_of_the_old_ones_is_left():
    run = forked(agents=2)
    run.lose(run.worker_of(0, 0))
    run.ask(0, 0)
    first = run.begins[0, 0].attempt
    run.ask(0, 0, fork=1, given=6, digest="something else")
    assert run.counts["episodes/diverged"] == 1
    assert run.core.state.accounts.lost == 6
    begun = run.begins[0, 0]
    assert (begun.trial, begun.known) == (2, 0)
    assert begun.attempt > first, "slots of the old trial are not written again"
    run.ask(0, 0)
    run.sample(0, 0)
    run.ask(0, 0, fork=1, digest="new")
    run.sample(0, FORK, 1)
    assert [item.member for item in end_group(run).contribute().items] == [0, FORK, 1]


def test_rewards_of_turns_name_their_trajectory():
    run = forked(agent={"turn_rewards": True}, trainer={"batch_groups": 2, "advantage_scale": "none"})
    run.sample(0, 1, 3)
    run.end(0, 0, 1.0, turn_rewards=((FORK, 0, 2.0),))
    run.end(0, 1, 0.0)
    group = run.core.state.groups[0]
    assert turn_rewards(group) == [[0.0, 3.0], [0.0]]
    items = {item.member: item.outcomes for item in group.contribute().items}
    assert items[0] == (0.0, group.turn_outcomes[0][0])
    assert items[FORK] == (0.0, group.turn_outcomes[0][1])


def test_spare_episodes_are_dropped_with_all_that_they_have():
    run = AgentRun(staleness={"spare_responses": 1, "max_staleness": 1})
    for episode in (0, 1, 2):
        run.ask(0, episode)
    run.sample(0, 2)
    run.ask(0, 2, fork=1, digest="other")  # number 5: 3 and 4 are of nobody
    for episode in (0, 1):
        run.sample(0, episode)
        run.end(0, episode)
    group = run.core.state.groups[0]
    assert [member.state for member in group.members] == ["finished", "finished", *["dropped"] * 4]
    assert run.core.state.accounts.aborted == 4


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"member": 4}, "asked for trajectory 0.4 in episode 0 of group 0, trial 1, which has 0 and next 2"),
        ({"member": 3}, "which has 0 and next 2"),
        ({"number": 1}, "expected ask 0"),
        ({"keep": 3}, "keeps 3 tokens"),
        ({"attempt": 9}, "the attempt 9; expected 2"),
    ],
)
def test_a_fork_that_cannot_be_closes_the_worker(lie, words):
    run = AgentRun()
    run.ask_all()
    run.sample(0, 0)
    run.ask(0, 0, fork=1, **lie)
    [closed] = run.sent(Close)
    assert words in closed.reason


def test_no_more_trajectories_than_the_configuration_allows():
    run = AgentRun(agent={"max_trajectories": 1})
    run.ask_all()
    run.sample(0, 0)
    run.ask(0, 0, fork=1)
    [closed] = run.sent(Close)
    assert "agent.max_trajectories allows 1" in closed.reason


def test_a_trajectory_stays_trained_or_untrained():
    run = forked()
    run.ask(0, 0, fork=1, is_trained=False)
    [closed] = run.sent(Close)
    assert "that it is not" in closed.reason


def test_scoring_sees_one_response_of_each_episode():
    run = forked(reward={"function": "tests.tasks.even_digits:reward"})
    run.sample(0, 1, 3)
    run.end(0, 0, None)
    commands = run.end(0, 1, None)
    scores = [c.message for c in commands if isinstance(getattr(c, "message", None), messages.Score)]
    assert [item.member for item in scores[0].items] == [0, 1]
    run.say("reward-0", messages.GroupScored(0, 1, (0.25, 0.5)))
    assert [item.reward for item in run.core.state.groups[0].contribute().items] == [0.25, 0.25, 0.5]


def test_given_tokens_of_forks_that_are_asked_for_in_one_turn_are_kept():
    run = AgentRun(agent={"max_trajectories": 3})
    run.ask_all((0,))
    begun = run.begins[0, 0]

    def ask(member, **other):
        fields = {"number": 0, "member": member, "attempt": begun.attempt + 1, "keep": 0, "given": 3}
        return messages.Ask(0, 0, 1, **fields | {"digest": "d", "max_new_tokens": 5} | other)

    peer = run.worker_of(0, 0)
    assert [run.core.keeps_payload(peer, ask(member)) for member in (2, 4)] == [True, True]
    assert not run.core.keeps_payload(peer, ask(6)), "agent.max_trajectories"
    assert not run.core.keeps_payload(peer, ask(3)), "another episode's"
    assert not run.core.keeps_payload(peer, ask(4, attempt=begun.attempt + 2))
    assert not run.core.keeps_payload(peer, ask(4, given=61))
    assert not run.core.keeps_payload(peer, ask(0)), "it is there, and is being answered"


def test_an_episode_that_begins_anew_calls_back_what_is_open_in_each_trajectory():
    run = forked()
    run.sample(0, 1, 3)
    run.ask(0, 0)
    run.ask(0, 0, fork=1, digest="more")
    commands = run.fail(0, 0)
    aborts = [c.message for c in commands if isinstance(getattr(c, "message", None), messages.Abort)]
    assert sorted(member for abort in aborts for _, member, _ in abort.attempts) == [0, FORK]
    group = run.core.state.groups[0]
    assert [member.state for member in group.of(group.episodes[0])] == ["waiting", "dropped"]
    assert run.begins[0, 0].trial == 2
