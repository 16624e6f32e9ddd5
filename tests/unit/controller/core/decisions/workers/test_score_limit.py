"""A reward worker has as long for a group as its rewards may take, and is closed after that."""

import pytest

from protocol import messages
from tests.unit.controller.core.decisions.workers.test_limits import LIMITS, STALENESS, Run

JUDGE = {"kind": "judge", "base_url": "http://judge", "model": "large"}


@pytest.mark.parametrize(
    ("reward", "group_s"),
    [
        ({"rewards": [JUDGE]}, 600.0),
        ({"rewards": [JUDGE | {"timeout_s": 1000.0}]}, 1000.0),
        ({"function": "mine.py:score", "timeout_s": 500.0}, 1000.0),  # two responses, one process
    ],
)
def test_a_reward_worker_may_take_all_the_time_that_its_rewards_may(reward, group_s):
    run = Run(staleness=STALENESS, reward=reward, group_size=2, limits=LIMITS | {"absent_s": 9000.0})
    run.say("rollout-0", messages.Pulled(0, "digest", 0.1))
    run.finish(0, 0)
    run.finish(0, 1)
    run.wait(2 * group_s)  # another group is before it
    assert run.is_there("reward-0"), run.closed
    assert run.is_closed_after("reward-0", 2 * 300 + LIMITS["answer_s"])
