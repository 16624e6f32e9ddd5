"""What `math` reads out of an answer without a box: one value, and none that the response rules out."""

import pytest

pytest.importorskip("math_verify", reason="pip install 'staleflow[math]'")

from protocol.rewards.kinds import MathReward
from workers.reward.kinds.interface import Place
from workers.reward.kinds.math import make

ONE_GUESS = [  # an answer, the golds that it may be right for, and those of a second reading
    ("The answer is 5(2)", ["7"], ["5"]),
    ("The answer is 1 or 2", [r"\{1,2\}"], ["1", "2"]),
    ("The answer is 1;2", [r"\{1,2\}"], ["1", "2"]),
    ("The answer is (3, 4)", ["(3,4)"], ["3", "4"]),
    ("1, 2, 3, 4, 5", [r"\{1,2,3,4,5\}"], ["5"]),
    ("The answer is 7, not 5.", ["7"], ["5"]),
    ("Not 6 but 7", ["7"], ["6"]),
    ("The answer isn't 5", [], ["5"]),
    ("The answer is 12, which is not 0.", ["12"], ["0"]),
    ("The answer is not $6$ but $5$", ["5"], ["6"]),
]
AS_BEFORE = [
    ("3.33", "10/3 = 3.33"), ("3.14", "22/7 ≈ 3.14"), ("5", "5 m/s"), ("4", "- 4"), ("-4", "- 4"),
    ("x+1", "x + 1"),
    ("42", "20 + 22 = 42 apples"), ("36", "36 sq. units"), ("8", "So we have 8 apples left."),
    ("0.5", "1/2 = 0.5"),
]  # fmt: skip


@pytest.fixture(scope="module")
def score():
    return make(MathReward(cpu_s=60.0), Place(""))


@pytest.mark.parametrize(("answer", "right", "wrong"), ONE_GUESS)
def test_an_answer_is_one_guess(score, answer, right, wrong):
    assert [score(answer, answer=gold) for gold in right] == [1.0] * len(right)
    assert [score(answer, answer=gold) for gold in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(("gold", "answer"), AS_BEFORE)
def test_words_around_a_number_do_not_hide_it(score, gold, answer):
    assert score(answer, answer=gold) == 1.0
