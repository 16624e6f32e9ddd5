"""Finds the program in a response, and compares its output with the expected output.

Invariant: pure, and linear in the length of the response.
"""

import math
from decimal import Decimal, InvalidOperation
from textwrap import dedent

FENCE = "```"
LANGUAGES, NO_LANGUAGE = ("python", "python3", "py", "py3"), ("",)
MOST_DIGITS = 64
"""Longest word that is compared as a number."""


def program_in(response: str) -> str | None:
    """The last block of Python in a chat answer, after its thinking.

    The whole answer if it has no block; None if it only has blocks of other languages. A block without a
    language, as examples of output have it, counts only if none names Python; one that the end of the
    response cuts off, only if there is no complete one.
    """
    answer = response.rpartition("</think>")[2]
    pieces = answer.split(FENCE)
    if len(pieces) == 1:
        return answer
    blocks = pieces[1::2]
    is_cut = len(pieces) % 2 == 0  # the last one has no end
    complete = blocks[:-1] if is_cut else blocks
    for languages in (LANGUAGES, NO_LANGUAGE):
        whole = [text for block in complete if (text := _in_language(block, languages)) is not None]
        if whole:
            return whole[-1]
    return _in_language(blocks[-1], LANGUAGES + NO_LANGUAGE) if is_cut else None


def _in_language(block: str, languages: tuple[str, ...]) -> str | None:
    """The text of a block in one of these languages, without the indentation of a list that it is in."""
    head, newline, text = block.partition("\n")
    words = head.strip().lower().split() or NO_LANGUAGE
    if not newline or words[0] not in languages:
        return None
    return dedent(text) if text.lstrip("\n")[:1] in (" ", "\t") else text


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
