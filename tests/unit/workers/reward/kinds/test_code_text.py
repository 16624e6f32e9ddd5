"""The program in a chat answer, and outputs that count as equal."""

import pytest

from workers.reward.kinds.code_text import is_output, program_in

ANSWERS = {
    "block": ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
    "last of several": ("```python\nx = 1\n```\nBetter:\n```py\nx = 2\n```", "x = 2\n"),
    "no language": ("```\nx = 1\n```", "x = 1\n"),
    "other language behind": ("```python\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
    "only another language": ("```bash\nls\n```", None),
    "cut off": ("```python\nx = 1\nprint(", "x = 1\nprint("),
    "cut off behind a whole one": ("```python\nx = 1\n```\n```python\nx = ", "x = 1\n"),
    "thoughts": ("<think>```python\nx = 0\n```</think>```python\nx = 1\n```", "x = 1\n"),
    "thoughts alone": ("<think>```python\nx = 0\n```</think>x = 1", "x = 1"),
    "bare": ("x = 1", "x = 1"),
    "options": ("```Python title=a\nx = 1\n```", "x = 1\n"),
    "output behind": ("```python\nx = 1\n```\nIt prints:\n```\n1\n```", "x = 1\n"),
    "output before": ("For\n```\n1\n```\nthat is\n```py\nx = 1\n```", "x = 1\n"),
    "two without a language": ("```\nx = 1\n```\nBetter:\n```\nx = 2\n```", "x = 2\n"),
    "in a list": ("1. So:\n   ```python\n   if x:\n     y = 1\n   ```", "if x:\n  y = 1\n"),
    "in a list behind a blank line": ("- So:\n\n\t```\n\n\tx = 1\n\t```", "\nx = 1\n"),
    "inline": ("```x = 1```", None),
    "void": ("", ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_program_is_the_last_block_of_python(name):
    answer, program = ANSWERS[name]
    assert program_in(answer) == program


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("1\n", "1"),
        ("1 \n2\n\n", "1\n2"),
        ("1.50 2", "1.5 2.0"),
        ("", "\n"),
        ("a  b", "a b"),
        ("1e3", "1000"),
    ],
)
def test_outputs_are_equal_up_to_white_space_and_the_writing_of_numbers(found, expected):
    assert is_output(found, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [("1\n2", "1 2"), ("", "1"), ("1", ""), ("1 2", "1"), ("nan", "NaN"), ("1.0001", "1"), ("0x1", "1"),
     ("1" * 100 + ".0", "1" * 100), ("a", "A"), ("inf", "Infinity")],
)  # fmt: skip
def test_other_outputs_are_not(found, expected):
    assert not is_output(found, expected)


def test_a_tolerance_is_relative_and_absolute():
    assert is_output("1000.1 0.00001", "1000 0", tolerance=1e-3)
    assert not is_output("1002", "1000", tolerance=1e-3)
