"""An objective finds the number of groups in the system, so nothing else may fix it."""

import pytest

from controller.config.models import Config
from controller.config.rules import cross_field_problems


def config(trainer=None, **staleness) -> Config:
    return Config.model_validate({"staleness": staleness, "trainer": trainer or {}})


@pytest.mark.parametrize("objective", ["fresh", 0.1])
@pytest.mark.parametrize(
    ("field", "value"),
    [("in_flight_batches", 2.0), ("in_flight_batches", "all"), ("admission", "areal"), ("pacing", "fixed")],
)
def test_an_objective_with_a_fixed_number_of_groups_is_refused_in_one_sentence(objective, field, value):
    found = list(cross_field_problems(config(objective=objective, **{field: value})))
    ((fields, text),) = [one for one in found if one[0][0] == "staleness.objective"]
    assert fields[1] == f"staleness.{field}"
    assert text.endswith("leave one of the two out.")
    assert not [one for one in cross_field_problems(config(**{field: value})) if "objective" in one[0][0]]


def test_freshness_trains_batches_in_parts_where_that_is_exact():
    assert config(objective="fresh").trainer.streaming
    assert not config().trainer.streaming
    assert not config(objective=0.1).trainer.streaming
    assert not config({"minibatches": 2}, objective="fresh").trainer.streaming
    assert not config({"streaming": False}, objective="fresh").trainer.streaming
    assert not config({"engine": "mine.py:make"}, objective="fresh").trainer.streaming


def test_what_freshness_turns_on_is_written_down_and_read_again():
    one = config(objective="fresh")
    assert Config.model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize("value", ["fast", -0.1, 1.5])
def test_an_objective_is_a_word_or_a_share(value):
    with pytest.raises(ValueError, match="objective"):
        config(objective=value)
