"""What an episode returns and notes on its way: checked where it is given."""

import asyncio
import math

import pytest

from tests.unit.workers.agent.kinds.test_agent_kinds import Script
from workers.agent.kinds.results import BadResult, Returned, reward_of
from workers.agent.policy import AgentPolicy, BudgetExceeded, Notes
from workers.agent.process import EpisodeServer


@pytest.mark.parametrize(
    "result", [math.nan, math.inf, "1", {"reward": 1}, {"score": "x"}, [1.0], object(), 1e300]
)
def test_what_is_no_reward_is_an_error(result):
    with pytest.raises(BadResult, match=r"The agent returned .*; expected .*1e\+30 in size|without `score`"):
        reward_of(result, Notes())


def test_numbers_scores_and_turn_rewards_are_rewards():
    results = (1, 0.5, True, {"score": 2}, None, {"score": None})
    values = [1.0, 0.5, 1.0, 2.0, None, None]
    assert [reward_of(result, Notes()) for result in results] == [(value, "end") for value in values]


def test_what_turns_have_earned_is_told_apart_from_what_was_earned_beside_them():
    notes = Notes(rewards={0: 0.25, 1: 0.5})
    assert reward_of(None, notes) == reward_of({"score": None}, notes) == (0.75, "turns")
    assert reward_of(Returned.TURN_REWARDS, notes) == (0.75, "turns")
    assert reward_of(Returned.TURN_REWARDS, Notes()) == (0.0, "turns"), "for no function to score"
    assert reward_of(2, notes) == (2.0, "end")
    with pytest.raises(BadResult, match=r"The sum of the rewards of turns got 1\.5\d*e\+30"):
        reward_of(None, Notes(rewards={0: 1e30, 1: 5e29}))


def test_rewards_and_metrics_are_checked_where_they_are_given():
    policy = AgentPolicy(Script([1], [2]), seed=0)
    with pytest.raises(ValueError, match="has had 0 turns"):
        policy.reward(1.0)
    asyncio.run(policy.generate([1]))
    asyncio.run(policy.generate([1]))
    policy.reward(0.25, turn=0)
    policy.reward(0.5)
    policy.reward(0.5, turn=-1)
    assert policy.notes.rewards == {0: 0.25, 1: 1.0}
    for call in (
        lambda: policy.reward(math.nan),
        lambda: policy.reward("1"),
        lambda: policy.reward(1.0, turn=2),
        lambda: policy.metric("x", math.inf),
        lambda: policy.metric("", 1.0),
        lambda: policy.metric("forks/edited", 1.0),
        lambda: policy.metric("a\nb", 1.0),
    ):
        with pytest.raises(ValueError, match=r"policy\.(reward|metric)"):
            call()


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "3"])
def test_a_budget_that_is_none_is_refused(most):
    policy = AgentPolicy(Script([1]), seed=0)
    with pytest.raises(ValueError, match="`max_tokens`"):
        asyncio.run(policy.generate([1], max_tokens=most))


def test_a_limit_is_left_behind_by_a_turn_that_was_asked_for_after_it():
    notes = Notes()
    notes.count(0, "", "a")
    notes.count(2, "context")  # two turns were asked for; one of them is open
    assert notes.last_limit == "context"
    notes.count(1, "", "b")
    assert notes.last_limit == "context", "it was asked for before"
    notes.count(-1, "", "untrained")
    assert notes.last_limit == "context"
    notes.count(2, "", "c")
    assert (notes.last_limit, notes.limit) == ("", "context")
    notes.count(3, "turns")
    assert notes.last_limit == notes.limit == "turns"


def test_an_error_long_after_a_limit_that_the_agent_has_left_behind_is_an_error():
    """Not an episode that its limit has ended, which would be trained with what its turns have earned."""

    async def play(policy, row):
        policy.notes.count(0, "", "a")
        policy.notes.count(1, "context")  # a client at the door was told so, makes room, and goes on
        policy.notes.count(1, "", "b")
        policy.notes.count(2, "", "c")
        if row["fails"]:
            raise KeyError("environment")
        policy.notes.count(3, "context")
        raise ValueError("the client's, at its second limit")

    server = EpisodeServer(None, play)
    server._read_all = lambda: None
    for fails in (True, False):
        notes = Notes()
        played = server._play_one(AgentPolicy(Script([1]), seed=1, notes=notes), {"fails": fails})
        if fails:
            with pytest.raises(KeyError):
                asyncio.run(played)
        else:
            assert b'"limit": "context"' in asyncio.run(played)[1]


class Gate(Script):
    """Refuses the second of its requests, and answers the first after that."""

    async def ask(self, question):
        if not self.asked:
            self.asked.append(question)
            await asyncio.sleep(0)
            return await super().ask(question)
        if len(self.asked) == 1:
            self.asked.append(question)
            raise BudgetExceeded("tokens")
        return await super().ask(question)


def test_an_answer_that_was_awaited_before_leaves_no_limit_behind():
    async def test():
        policy = AgentPolicy(Gate([1], [2], [3]), seed=0)
        asked = (policy.generate([1]), policy.generate([2]))
        answer, error = await asyncio.gather(*asked, return_exceptions=True)
        assert (answer.token_ids, error.limit, policy.notes.last_limit) == ([1], "tokens", "tokens")
        await policy.untrained.generate([3])
        assert policy.notes.last_limit == "tokens"
        await policy.generate([3])
        assert policy.notes.last_limit == ""

    asyncio.run(test())
