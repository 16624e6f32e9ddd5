"""Answers in responses as chat models write them, labelled by hand."""

import pytest

from workers.reward.kinds.answers import find_answer
from workers.reward.kinds.choice import chosen_letter

BOXED = [
    (r"The sum is $\boxed{42}$.", "42"),
    (r"First \boxed{1}, then \boxed{2}, so \boxed{3}", "3"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"$$\boxed{\left\{1, 2\right\}}$$", r"\left\{1, 2\right\}"),
    (r"\boxed{ 7 }", "7"),
    (r"\boxed {8}", "8"),
    (r"\fbox{9}", "9"),
    (r"\boxed 5.", "5"),
    (r"so $\boxed 12$ it is", "12"),
    ("\\boxed{\n 4 \n}", "4"),
    (r"\boxed{x = \boxed{3}}", "3"),
    (r"<think>maybe \boxed{1}</think> \boxed{2}", "2"),
    (r"The answer is 3. Check: \boxed{4}", "4"),
    (r"\boxed{5} and that is the final answer: 6", "5"),
    (r"\boxed{1,000}", "1,000"),
    (r"\boxed{\text{(B)}}", r"\text{(B)}"),
    (r"Answer: $\boxed{\sqrt{2}}$ \boxed{", r"\sqrt{2}"),
    (r"\boxed{10\%}", r"10\%"),
    (r"\[ \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} \]", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"**\boxed{11}**", "11"),
    (r"\boxed{\$5}", r"\$5"),
    (r"\boxed{}", ""),
]
SAID = [
    ("The answer is 42.", "42."),
    ("The final answer is: 7", "7"),
    ("Answer: 12 apples", "12 apples"),
    ("**Answer:** 3/4", "3/4"),
    ("**Final Answer**: 10", "10"),
    ("Final answer:\n\n16", "16"),
    ("ANSWER = 5", "5"),
    ("The answer is 3. Wait, no. The answer is 4", "4"),
    ("so 2 + 2 = 4\n#### 4", "4"),
    ("#### 1\n#### 2", "2"),
    ("The correct answer is (1, 2).\nI hope this helps!", "(1, 2)."),
    ("The answers are 1 and 2", "1 and 2"),
    ("answer: $x^2$", "$x^2$"),
    ("<think>the answer is 1</think>The answer is 2", "2"),
    ("The answer would be -3", "-3"),
    ("### Final Answer: 8", "8"),
    ("The answer equals 6", "6"),
]
LINES = [
    ("We add.\n2 + 2 = 4", "2 + 2 = 4"),
    ("4", "4"),
    ("  4  \n\n\n", "4"),
    ("So it is\n**17**", "17"),
    ("x\n`23`", "23"),
    ("The total is $12$", "The total is $12$"),
    ("one\ntwo\n```", "two"),
    ("<think>hm\n9</think>\n\n10", "10"),
    ("It costs 5 dollars.\n", "It costs 5 dollars."),
    ("5 boxes, none open: \\boxed{6", "5 boxes, none open: \\boxed{6"),
    ("First line\n\\(x = 2\\)", "\\(x = 2\\)"),
    ("an unanswered question\n3", "3"),
]
NOTHING = ["", "   ", "\n\n", "<think>42</think>", "**", "```\n```"]
BOX_WANTED = [("The answer is 4", None), (r"\boxed{4}", "4"), ("4", None), (r"\boxed{4", None)]
LETTERS = [
    ("C", "C"), ("(c)", "C"), ("c.", "C"), ("**B**", "B"), (r"\boxed{D}", "D"), (r"\boxed{\text{A}}", "A"),
    ("The answer is (B).", "B"), ("Answer: A", "A"), ("B) the second one", "B"), ("D. Because it rains", "D"),
    ("I would say A first, but\nthe correct answer is C", "C"), ("The best option is B", "B"),
    ("A or B", None), ("", None), ("none of these", None), ("E", None), ("Both A and B", None),
    ("<think>A</think>B", "B"), ("A cat sat on the mat", None), ("Answer: **D**", "D"), ("$C$", "C"),
    ("The answer is A, because B is wrong", "A"), ("42", None), ("Answer: Bananas", None), ("Option B", "B"),
    (r"\boxed{A} or \boxed{C}", "C"), ("A/B", None), ("a", "A"),
]  # fmt: skip
LISTS = [
    "A. B. C. D.", "A) B) C) D)", "(A)(B)(C)(D)", "A: yes. B: yes. C: yes", "A; B", "A.B.C.D", "A, maybe B",
    "A. Or B", "**A** or **B**", "Answer: $A$ or $B$", "Answer: [A] [B]", "Answer: A, or else B",
    "Answer: A. (B)", "Answer: A... B...", "Answer: A,\u200bB", "Answer: A. No, B.", r"\boxed{A;B}",
    r"\boxed{\text{A}, \text{B}}", "A) 1 B) 2 C) 3 D) 4", "A. 1 B. 2 C. 3", "Answer: A) or maybe it is B)",
]  # fmt: skip
RULED_OUT = [
    ("The answer is not A", None), ("The answer isn't C", None), ("It cannot be A", None), ("Not D", None),
    ("Anything but D", None), ("Everything except B", None), ("I don't think it's B", None),
    ("B is wrong.", None),
    ("No, B is false", None), ("Neither A", None), ("The answer is not A but B", "B"), ("Not A. B", "B"),
    ("B (not A)", "B"), ("It is B and not A.", "B"), ("A is incorrect, so it is B", "B"),
    ("C, because A is wrong", "C"),
]  # fmt: skip
OPTIONS = [
    ("C) A and B", "C"), ("D. Neither B nor C", "D"), ("C. Both A and B are wrong", "C"), ("B) Plan B", "B"),
    ("D: A and B", "D"), ("A) It rains because vitamin D is low", "A"), ("C. A is wrong because of D.", "C"),
    ("(C), since A is false", "C"), (r"$\boxed{\textbf{(B)}\ 12}$", "B"), ("C) not A", "C"),
]  # fmt: skip
OF_TEN = [
    ("I, too, choose B", "B"), ("I, for one, choose J", "J"), ("I, however, cannot decide.", None),
    ("B, I think", "B"),
    ("I (the assistant) do not know", None), ("I, because it rains", "I"), ("I: yes", "I"),
    ("I don't know.", None), ("I cannot tell which one is right", None), ("I choose B.", "B"),
    ("So I believe the answer should be C, since I checked", "C"), ("Therefore, I guess (D)", "D"),
    ("I", "I"), ("Option I", "I"), ("I is right", "I"), ("I fits best", "I"), ("I or B", None),
    ("I. Because it rains", "I"), ("I think it is I.", "I"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "answer"), BOXED)
def test_the_last_box_counts(response, answer):
    assert find_answer(response) == (answer, True)


@pytest.mark.parametrize(("response", "answer"), SAID + LINES)
def test_without_a_box_the_last_words_count(response, answer):
    assert find_answer(response) == (answer, False)


@pytest.mark.parametrize("response", NOTHING)
def test_where_nothing_is_said_there_is_no_answer(response):
    assert find_answer(response) is None


@pytest.mark.parametrize(("response", "answer"), BOX_WANTED)
def test_a_box_can_be_asked_for(response, answer):
    assert find_answer(response, "boxed") == (None if answer is None else (answer, True))


def test_the_last_line_can_be_asked_for():
    assert find_answer("\\boxed{1}\nThe answer is 2\n3", "last_line") == ("3", False)


@pytest.mark.parametrize(("response", "letter"), LETTERS)
def test_a_letter_is_chosen_or_none(response, letter):
    assert chosen_letter(response, "ABCD") == letter


@pytest.mark.parametrize("response", LISTS)
def test_a_list_of_letters_chooses_none(response):
    assert chosen_letter(response, "ABCD") is None


@pytest.mark.parametrize(("response", "letter"), RULED_OUT)
def test_a_letter_that_is_ruled_out_is_not_chosen(response, letter):
    assert chosen_letter(response, "ABCD") == letter


@pytest.mark.parametrize(("response", "letter"), OPTIONS)
def test_letters_in_the_text_of_an_option_are_no_list(response, letter):
    assert chosen_letter(response, "ABCD") == letter


@pytest.mark.parametrize(("response", "letter"), OF_TEN)
def test_who_says_i_does_not_choose_the_letter(response, letter):
    assert chosen_letter(response, "ABCDEFGHIJ") == letter
