"""Greedy evaluation: more than one sample would be copies."""

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
