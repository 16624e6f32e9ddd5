"""Groups of which some episodes have a reward already: the reward function is asked for the others alone."""

import pytest

from controller.core.events import Tick
from controller.core.state.evaluation_report import Answered
from controller.core.state.kept_samples import kept_groups
from protocol.messages import GroupScored, Score
from tests.support.agent_run import AgentRun
from tests.support.batch_line import batch_metrics

SUM = {"rewards": [{"kind": "exact"}, {"function": "m.py:brevity"}]}


def answered(**sections) -> AgentRun:
    """A run whose policy has answered both episodes of group 0 once."""
    run = AgentRun(reward=SUM, trainer={"batch_groups": 1}, samples={"groups": 0}, **sections)
    run.ask_all([0])
    run.sample(0, 0)
    run.sample(0, 1)
    return run


def score(run: AgentRun, parts=()) -> tuple[int, ...]:
    """Answer the order to score group 0 with 0.25 for each member; returns the members that it names."""
    (order,) = [one for one in run.sent(Score) if one.group == 0]
    count = len(order.items)
    told = GroupScored(0, order.attempt, (0.25,) * count, tuple((name, (0.5,) * count) for name in parts))
    run.say("reward-0", told)
    return tuple(item.member for item in order.items)


@pytest.mark.parametrize("named", [(), ("exact",)])
def test_an_episode_that_told_its_reward_is_not_shown_to_the_reward_function(named):
    run = answered()
    group = run.core.state.groups[0]
    run.end(0, 0, 1.0)
    run.end(0, 1, None, earned="scored", talk=9)
    assert score(run, named) == (1,)
    assert group.rewards == (1.0, 0.25)
    assert group.reward_parts == tuple((name, (None, 0.5)) for name in named)


def test_a_named_reward_is_the_mean_over_the_responses_that_it_scored():
    run = answered()
    group = run.core.state.groups[0]
    run.end(0, 0, 1.0)
    run.end(0, 1, None, earned="scored", talk=9)
    score(run, ("exact",))
    line = batch_metrics([group.contribute()], 1)
    assert line["reward/exact"] == 0.5
    assert line["reward/mean"] == 0.625
    assert Answered.of(group).parts == (("exact", (0.5,)),)
    (kept,) = kept_groups([group], count=1, step=1, seed=0)
    assert kept.parts == (("exact", (None, 0.5)),)


def test_an_episode_whose_environment_was_silent_is_not_shown_to_it():
    run = answered(agent={"turn_timeout_s": 3})  # less than the leases of the workers
    group = run.core.state.groups[0]
    run.end(0, 0, None, earned="scored", talk=9)
    while group.episodes[1].ending is None:
        run.do(Tick(), at=run.core.next_deadline())
    assert group.episodes[1].ending == "timeout"
    assert score(run) == (0,)
    assert group.rewards == (0.25, 0.0)


def test_one_that_a_limit_has_made_worth_nothing_is_not_shown_to_it():
    run = answered(agent={"on_limit": "zero"})
    run.end(0, 0, None, earned="scored", talk=9, ending="turns")
    run.end(0, 1, None, earned="scored", talk=9)
    assert score(run) == (1,)


def test_older_workers_had_it_asked_for_all_of_a_group():
    run = answered()
    group = run.core.state.groups[0]
    run.end(0, 0, 1.0)
    run.end(0, 1, None, talk=9)
    assert score(run, ("exact",)) == (0, 1)
    assert group.rewards == (1.0, 0.25)
    assert group.reward_parts == (("exact", (0.5, 0.5)),)
