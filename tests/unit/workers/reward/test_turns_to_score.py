"""What a reward function gets of episodes: what the policy has said, turn by turn."""

import asyncio
from dataclasses import replace

import pytest

from protocol.errors import ConfigError
from protocol.messages import GIVEN, ScoreItem, Segment
from protocol.rewards.shapes import Signature, missing_problem, offered_names
from tests.unit.workers.reward.test_reward_functions import REQUEST
from workers.reward.functions import adapt
from workers.reward.worker import last_said, sampled_runs

EPISODES = replace(REQUEST, turns=[["a", "b"], ["c"]])


def test_a_function_of_one_response_gets_its_turns():
    seen = []

    def reward(completion, turns):
        seen.append(turns)
        return len(turns)

    assert asyncio.run(adapt(reward)(EPISODES)) == [2.0, 1.0]
    assert seen == EPISODES.turns


def test_a_function_of_a_group_gets_those_of_all():
    assert asyncio.run(adapt(lambda completions, turns: [len(one) for one in turns])(EPISODES)) == [2.0, 1.0]


def test_a_column_of_that_name_is_the_data_s_where_there_are_no_episodes():
    plain = replace(REQUEST, row={**REQUEST.row, "turns": 3})
    assert asyncio.run(adapt(lambda completion, turns: turns)(plain)) == [3.0, 3.0]
    with pytest.raises(ConfigError, match="asks for `turns`"):
        asyncio.run(adapt(lambda completion, turns: 1.0)(REQUEST))


def test_check_knows_that_episodes_have_them():
    signature = Signature(("completion", "turns"), ("completion", "turns"), False)
    assert missing_problem(signature, offered_names(signature, {}, is_agent=True), {}) is None
    assert "asks for `turns`" in (missing_problem(signature, offered_names(signature, {}), {}) or "")


def test_runs_of_a_turn_that_moved_are_one_and_what_was_given_is_left_out():
    segments = (
        Segment(1, GIVEN, 2),
        Segment(2, 0, 1),
        Segment(3, 1, 2),
        Segment(4, GIVEN, 1),
        Segment(5, 1, 1),
    )
    item = ScoreItem(0, "stop", segments)
    assert sampled_runs(item, [10, 11, 12, 13, 14, 15, 16]) == [[12, 13, 14], [16]]
    assert last_said([10, 11, 12, 13, 14, 15, 16], [[12, 13, 14], [16]]) == [16]
    assert last_said([1, 2], None) == [1, 2], "of a response all of it"
    assert sampled_runs(ScoreItem(0, "stop", (Segment(1, 0, 2),)), [1, 2]) is None
