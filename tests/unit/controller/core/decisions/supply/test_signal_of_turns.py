"""What a filter and a penalty for length are about where turns have advantages of their own."""

import pytest

from controller.core.events import Tick
from strategies.outcomes import by_returns
from tests.support.agent_run import AgentRun

TRAINER = {"batch_groups": 2, "advantage_scale": "none"}


def play(by_turn, *, ends=(0.0, 0.0), earned="end", turn_rewards=True, trainer=None, **sections):
    """A run in which the two episodes of group 0 earn that by turn, and that at their ends."""
    agent = {"turn_rewards": turn_rewards} | sections.pop("agent", {})
    run = AgentRun(agent=agent, trainer=TRAINER | (trainer or {}), **sections)
    run.ask_all()
    for episode, turns in enumerate(by_turn):
        run.sample(0, episode)
        for _ in turns[1:]:
            run.ask(0, episode)
            run.sample(0, episode)
        told = tuple((episode, number, reward) for number, reward in enumerate(turns))
        end = sum(turns) if earned == "turns" else ends[episode]
        run.end(0, episode, end, turn_rewards=told, earned=earned)
    return run


def is_kept(*arguments, **more):
    run = play(*arguments, staleness={"filter": "zero_variance"}, **more)
    assert run.counts["groups/filtered"] == (0 not in run.core.state.groups)
    return 0 in run.core.state.groups


@pytest.mark.parametrize(
    ("by_turn", "ends", "earned"),
    [
        ([(1.0,), (0.0,)], (0.0, 0.0), "end"),  # the rewards of their ends are equal
        ([(1.0, 0.0), (0.0, 1.0)], None, "turns"),  # so are the sums, and the second turns differ
        ([(0.0, 0.0), (0.0,)], (1.0, 0.0), "end"),
    ],
)
def test_a_group_in_which_the_advantages_of_any_turn_differ_is_kept(by_turn, ends, earned):
    assert is_kept(by_turn, ends=ends, earned=earned)


def like_returns(view):
    return by_returns(view)


@pytest.mark.parametrize("credit", [{}, {"turn_advantages": f"{__name__}:like_returns"}])
def test_equal_turns_are_no_signal_whatever_rounding_makes_of_their_mean(credit):
    """Their mean is rounded, so the advantages are tiny numbers of another size at each turn, and no 0."""
    run = AgentRun(
        agent={"turn_rewards": True} | credit, rollout={"group_size": 3},
        staleness={"filter": "zero_variance"},
        trainer={"batch_groups": 2, "advantage_scale": "group_std"},
    )  # fmt: skip
    for episode in range(3):
        run.ask(0, episode)
    for episode in range(3):
        run.sample(0, episode)
        run.ask(0, episode)
        run.sample(0, episode)
        run.end(0, episode, 0.7, turn_rewards=((episode, 0, 0.1),))
    assert run.counts["groups/filtered"] == 1


def test_a_turn_that_one_episode_alone_has_come_to_is_no_signal_by_itself():
    """The ends of the episodes differ, and what is trained of them does not."""
    assert not is_kept([(1.0, 5.0), (1.0,)], ends=(0.0, 0.0), agent={"turn_discount": 0.0})


def halves(view):
    """Credit: each first turn is better than each later one."""
    return [[0.5 if turn == 0 else -0.5 for turn, _ in enumerate(one)] for one in view.rewards]


def nothing(view):
    return [[0.0] * len(one) for one in view.rewards]


@pytest.mark.parametrize(("credit", "kept"), [("halves", True), ("nothing", False)])
def test_of_a_credit_of_the_users_all_advantages_together_count(credit, kept):
    agent = {"turn_advantages": f"{__name__}:{credit}"}
    assert is_kept([(1.0, 0.0), (1.0, 0.0)], agent=agent) == kept
    assert is_kept([(1.0, 0.0), (0.0, 0.0)], agent=agent) == kept


SEEN: list[tuple[float, ...]] = []


def noting(rewards):
    """A filter."""
    SEEN.append(tuple(rewards))
    return False


@pytest.mark.parametrize("turn_rewards", [True, False])
def test_a_filter_of_the_users_is_given_the_rewards_of_the_episodes(turn_rewards):
    SEEN.clear()
    run = play(
        [(1.0, 2.0), (3.0,)], earned="turns", turn_rewards=turn_rewards, trainer=OVERLONG,
        staleness={"filter": f"{__name__}:noting"},
    )  # fmt: skip
    assert (SEEN, run.counts["groups/filtered"]) == ([(3.0, 3.0)], 1)


def test_without_advantages_of_turns_a_group_with_equal_rewards_is_dropped_as_ever():
    assert not is_kept([(1.0, 0.0), (0.0, 1.0)], earned="turns", turn_rewards=False)


def test_the_rewards_of_turns_are_told_where_the_filter_goes_by_them():
    run = play(
        [(1.0, 0.5), (1.0, 0.5)], earned="turns", staleness={"filter": "zero_variance"},
        limits={"filtered_batches": 1}, trainer={"batch_groups": 1},
    )  # fmt: skip
    assert "the last with the rewards of turns 1, 0.5; 1, 0.5: nothing is left" in run.core.state.ending


OVERLONG = {"overlong_buffer": 1.0, "overlong_penalty": 5.0}  # of 10 tokens: half a point for each


def test_a_penalty_for_length_is_taken_off_the_last_turn_and_reaches_the_turns_before_it():
    by_turn = [(0.0, 0.0), (0.0,)]  # 8 and 4 tokens
    run = play(by_turn, ends=(1.0, 1.0), trainer=OVERLONG)
    group = run.core.state.groups[0]
    # returns: 1 - 4 and 1 - 4; 1 - 2
    assert group.turn_outcomes == ((-1.0, 0.0), (1.0,))
    assert (group.rewards, group.outcomes) == ((1.0, 1.0), (-1.0, 1.0))


def test_a_penalty_for_length_is_no_signal_for_the_filter():
    assert not is_kept([(0.0, 0.0), (0.0,)], ends=(1.0, 1.0), trainer=OVERLONG)


def test_what_an_older_release_told_is_decided_as_it_was_then():
    """Else the journals of its runs could not be derived again."""
    by_turn = [(1.0,), (0.0,)]
    assert not is_kept(by_turn, earned="")
    assert is_kept([(0.0,), (0.0,)], ends=(1.0, 0.0), earned="")
    run = play([(0.0, 0.0), (0.0,)], ends=(1.0, 1.0), earned="", trainer=OVERLONG)
    assert run.core.state.groups[0].turn_outcomes == ((0.0, 0.0), (0.0,))


def test_a_group_that_an_older_release_began_compares_its_episodes_alike():
    both = {(0.5, 0.5): "", (0.25, 0.75): "turns"}
    run = AgentRun(agent={"turn_rewards": True}, trainer=TRAINER)
    run.ask_all()
    for episode, (turns, earned) in enumerate(both.items()):
        run.sample(0, episode)
        run.ask(0, episode)
        run.sample(0, episode)
        told = tuple((episode, number, reward) for number, reward in enumerate(turns))
        run.end(0, episode, 1.0, turn_rewards=told, earned=earned)
    assert run.core.state.groups[0].turn_outcomes == ((0.0, -0.125), (0.0, 0.125))


def test_a_group_of_which_nobody_says_what_its_turns_have_earned_is_decided_as_ever():
    """All its episodes were timed out, which an older release's were, too."""
    agent = {"turn_rewards": True, "turn_timeout_s": 30, "on_timeout": "score"}
    run = AgentRun(agent=agent, trainer=TRAINER | OVERLONG, controller={"lease_s": 10_000})
    run.ask_all()
    for episode, turns in enumerate((2, 1)):
        run.sample(0, episode)
        for _ in range(turns - 1):
            run.ask(0, episode)
            run.sample(0, episode)
    while run.core.state.groups[0].state == "generating":
        run.do(Tick(), at=max(run.now + 0.001, run.core.next_deadline()))
    group = run.core.state.groups[0]
    assert {episode.ending for episode in group.episodes} == {"timeout"}
    assert group.turn_outcomes == ((0.0, 0.0), (0.0,))
