"""Rules between keys of agents: each names its keys and what would do."""

import pytest

from controller.config.agents.agent_rules import agent_problems
from controller.config.models import Config

WITH = {"chat_template_kwargs": {"enable_thinking": False}}


def problems(**agent):
    made = {"agent": {"function": "a.py:f"} | agent}
    return dict(agent_problems(Config.model_validate(made)))


@pytest.mark.parametrize(
    ("agent", "fields", "words"),
    [
        (
            {"history": "template", "max_trajectories": 1},
            ("agent.history", "agent.max_trajectories"),
            "raise it, or set `keep`",
        ),
        (
            {"history": "template", "renderer": "plain"},
            ("agent.history", "agent.renderer"),
            "leave it `keep`",
        ),
        (
            {"turn_advantages": "a.py:f"},
            ("agent.turn_advantages", "agent.turn_rewards"),
            "set it true, or leave",
        ),
        (
            {"max_sampled_tokens": 50, "max_turn_tokens": 51},
            ("agent.max_sampled_tokens", "agent.max_turn_tokens"),
            "lets one answer have 51; raise the one, lower the other, or set 0",
        ),
        ({"concurrency": 1}, ("agent.concurrency", "agent.workers", "rollout.group_size"), "give at least"),
    ],
)
def test_keys_that_do_not_go_together_are_named_with_a_remedy(agent, fields, words):
    assert words in problems(**agent)[fields]


@pytest.mark.parametrize("renderer", ["plain", "qwen3"])
@pytest.mark.parametrize(
    ("place", "made"),
    [
        ("data", {"data": WITH}),
        ("data.sources.1", {"data": {"sources": [{"path": "a"}, {"path": "b", **WITH}]}}),
        ("evaluation.data.held", {"evaluation": {"data": {"held": {"path": "a", **WITH}}}}),
    ],
)
def test_arguments_of_a_template_are_refused_where_none_is_used(renderer, place, made):
    agent = {"function": "a.py:f", "renderer": renderer}
    found = dict(agent_problems(Config.model_validate(made | {"agent": agent})))
    assert [*found] == [(f"{place}.chat_template_kwargs", "agent.renderer")]
    assert all("take the arguments out" in words for words in found.values())
    assert not dict(agent_problems(Config.model_validate(made | {"agent": {"function": "a.py:f"}})))


def test_keys_that_do_are_left_alone():
    assert problems(history="template") == problems() == {}
