"""Evaluation: where more than one sample would be copies, and where a reward of its own scores nothing."""

import pytest

from controller.config.evaluation import copies_problem
from controller.config.models import Config
from controller.config.rules import cross_field_problems
from protocol.settings import SamplingSettings


@pytest.mark.parametrize(
    ("samples", "temperature", "is_refused"), [(2, 0.0, True), (1, 0.0, False), (2, 0.5, False)]
)
def test_several_samples_at_temperature_0_are_refused_in_a_run_too(samples, temperature, is_refused):
    problem = copies_problem(samples, SamplingSettings(temperature=temperature))
    assert (problem is not None) is is_refused
    evaluation = {"every_steps": 1, "data": {"a": {"path": "a.jsonl"}}, "samples": samples}
    config = Config.model_validate({"evaluation": evaluation | {"sampling": {"temperature": temperature}}})
    assert [text for fields, text in cross_field_problems(config) if fields[0] == "evaluation.samples"] == (
        [problem] if is_refused else []
    )


@pytest.mark.parametrize(("agent", "function"), [("a.py:f", ""), ("a.py:f", "b.py:g"), ("", "b.py:g")])
def test_a_reward_for_held_out_episodes_alone_is_refused(agent, function):
    tree = {"agent": {"function": agent}, "reward": {"function": function}}
    config = Config.model_validate(tree | {"evaluation": {"reward_function": "c.py:h"}})
    found = [
        text for fields, text in cross_field_problems(config) if fields[0] == "evaluation.reward_function"
    ]
    assert bool(found) is (bool(agent) and not function)
    assert all("is c.py:h, but reward.function is empty" in text for text in found)
