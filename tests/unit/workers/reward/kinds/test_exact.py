"""The reward `exact`: which part of a response counts, and what it has to equal."""

import pytest

from protocol.rewards.kinds import ExactReward
from workers.reward.kinds.exact import make
from workers.reward.kinds.interface import Place, Unscorable


def score(completion: str, answer: object, **options: object) -> float:
    return make(ExactReward.model_validate(options), Place("."))(completion, answer=answer)


@pytest.mark.parametrize(
    ("completion", "answer", "options", "expected"),
    [
        (" 42\n", "42", {}, 1.0),
        ("42", 42, {}, 1.0),
        ("It is 42", "42", {}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"ignore_case": True}, 1.0),
        ("a=1, a=2", "2", {"pattern": r"a=(\d)"}, 1.0),
        ("a=1, a=2", "a=2", {"pattern": r"a=\d"}, 1.0),
        ("no answer", "no answer", {"pattern": r"a=(\d)"}, 0.0),
        ("8", "3 + 5 #### 8", {"answer_after": "####"}, 1.0),
    ],
)
def test_the_last_match_is_the_answer_and_equals_that_of_the_data(completion, answer, options, expected):
    assert score(completion, answer, **options) == expected


@pytest.mark.parametrize("answer", [None, [1], {"a": 1}])
def test_a_row_without_an_answer_cannot_be_scored_and_says_why(answer):
    with pytest.raises(Unscorable, match="expected the gold answer as text or a number"):
        score("42", answer)
