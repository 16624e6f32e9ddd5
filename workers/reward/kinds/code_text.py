"""Finds the program in a response, and compares its output with the expected output.

Invariant: pure, and linear in the length of the response.
"""

import math
from decimal import Decimal, InvalidOperation

FENCE = "```"
LANGUAGES = ("python", "python3", "py", "py3", "")
MOST_DIGITS = 64
"""Longest word that is compared as a number."""


def program_in(response: str) -> str | None:
    """The last block of Python in a chat answer, after its thinking.

    The whole answer if it has no block; None if it only has blocks of other languages. A block that the end
    of the response cuts off counts only if there is no complete one.
    """
    answer = response.rpartition("</think>")[2]
    pieces = answer.split(FENCE)
    if len(pieces) == 1:
        return answer
    blocks = pieces[1::2]
    is_cut = len(pieces) % 2 == 0  # the last one has no end
    whole = [text for text in map(_of_python, blocks[:-1] if is_cut else blocks) if text is not None]
    if whole:
        return whole[-1]
    return _of_python(blocks[-1]) if is_cut else None


def _of_python(block: str) -> str | None:
    head, newline, text = block.partition("\n")
    if not newline:
        return None
    words = head.strip().lower().split()
    return text if not words or words[0] in LANGUAGES else None


def is_output(found: str, expected: str, tolerance: float = 0.0) -> bool:
    """Whether the lines are equal, except white space at their ends and empty lines after the last.

    Words that are numbers are compared as numbers.

    Source: LiveCodeBench, which compares numbers as decimals; `tolerance` is relative and absolute.
    """
    lines, wanted = _lines(found), _lines(expected)
    if lines == wanted:
        return True
    if len(lines) != len(wanted):
        return False
    return all(_is_line(*pair, tolerance) for pair in zip(lines, wanted, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _is_line(found: str, expected: str, tolerance: float) -> bool:
    words, wanted = found.split(), expected.split()
    return len(words) == len(wanted) and all(
        _is_word(*pair, tolerance) for pair in zip(words, wanted, strict=True)
    )


def _is_word(found: str, expected: str, tolerance: float) -> bool:
    if found == expected:
        return True
    if max(len(found), len(expected)) > MOST_DIGITS:
        return False
    try:
        one, other = Decimal(found), Decimal(expected)
        if not (one.is_finite() and other.is_finite()):
            return False
        if one == other:
            return True
        return tolerance > 0 and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    except (InvalidOperation, OverflowError):
        return False
