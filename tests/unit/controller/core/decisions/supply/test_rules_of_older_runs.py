"""Runs that an older release began go on by its rules (`Started.rules`)."""

import pytest

from controller.core.events import OLD_RULES, RULES
from tests.support.agent_run import AgentRun

COMPARED = {"trainer": {"batch_groups": 1, "baseline": "leave_one_out", "advantage_scale": "group_std"}}


@pytest.mark.parametrize(("rules", "outcome"), [(OLD_RULES, 0.5 / 1e-6), (RULES, 0.5)])
def test_a_reward_whose_siblings_are_masked_is_divided_as_the_rules_of_the_run_have_it(rules, outcome):
    run = AgentRun(rules=rules, agent={"on_limit": "mask"}, samples={"groups": 0}, **COMPARED)
    group = run.core.state.groups[0]
    run.ask_all([0])
    run.sample(0, 0)
    run.sample(0, 1)
    run.end(0, 0, 0.5)
    run.end(0, 1, 1.0, ending="turns")
    assert group.outcomes == pytest.approx((outcome,))


@pytest.mark.parametrize(("rules", "outcome"), [(OLD_RULES, 0.5 / 1e-6), (RULES, 0.5)])
def test_so_is_that_of_a_turn_which_one_episode_alone_has_reached(rules, outcome):
    run = AgentRun(rules=rules, agent={"turn_rewards": True}, samples={"groups": 0}, **COMPARED)
    group = run.core.state.groups[0]
    run.ask_all([0])
    run.sample(0, 0)
    run.sample(0, 1)
    run.ask(0, 1)
    run.sample(0, 1)
    run.end(0, 0, 0.0)
    run.end(0, 1, 0.5)
    assert group.turn_outcomes[1][-1] == pytest.approx(outcome)
