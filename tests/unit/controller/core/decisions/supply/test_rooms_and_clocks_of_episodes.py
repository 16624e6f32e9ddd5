"""Agent workers with less room than a group, and which clock ended an episode."""

import pytest

from controller.core.commands import Warn
from controller.core.events import Tick
from tests.support.agent_run import AgentRun
from tests.unit.controller.core.decisions.supply.test_episodes import PATIENT


def test_a_worker_with_room_for_less_than_a_group_takes_one_all_the_same_and_no_more():
    run = AgentRun(capacity=1)
    assert sorted(run.begins) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"turn_timeout_s": 30}, "(agent.turn_timeout_s)"),
        ({"turn_timeout_s": 30, "episode_timeout_s": 10}, "(agent.episode_timeout_s)"),
    ],
)
def test_the_limit_that_a_silent_environment_has_passed_is_named(limits, key):
    run = AgentRun(agent={"on_timeout": "retry", **limits}, **PATIENT)
    run.ask_all()
    run.sample()
    commands = run.do(Tick(), at=run.core.next_deadline())
    told = [command.text for command in commands if isinstance(command, Warn)]
    assert any("was silent for" in text and key in text for text in told), told
