"""The reward `math`: 1 if the answer in the response is mathematically equal to that of the data.

Invariants: math-verify is called in the main thread, with our limit of CPU time in place of its own, which
counts wall-clock seconds; an answer that it cannot read is wrong, a gold answer that it cannot read is a
failure.
"""

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Basic

from protocol.rewards.kinds import MathReward
from workers.reward.kinds.answers import find_answer
from workers.reward.kinds.cpu_limit import within
from workers.reward.kinds.interface import Place, Unscorable, gold_answer

MARKED = re.compile(r"\$|\\[(\[]|\\boxed")
NEGATED = re.compile(
    r"(?:\bnot|n't|\brather than|\binstead of)\s{1,4}(?:equal to\s{1,4})?"
    r"(?:\$|\\\()?-?\d[\d.,/]*(?<![.,/])(?:\$|\\\))?",
    re.IGNORECASE,
)
"""A number that the response rules out, as in `7, not 5`: math-verify reads the last number of a text."""
GOLDS = 4096  # prompts whose gold answer is cached: the responses to a prompt come close together


def make(options: MathReward, place: Place) -> Callable[..., float]:
    """A function of one response."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own limit is off

    def score(completion: str, **columns: Any) -> float:
        gold = gold_answer(columns, options.answer, options.answer_after)
        found = find_answer(completion, options.extract)
        if found is None:
            return 0.0
        return float(bool(within(options.cpu_s, lambda: is_right(gold, *found))))

    return score


def is_right(gold: str, answer: str, is_boxed: bool) -> bool:
    """Whether an answer that `find_answer` found is right. Raises: Unscorable.

    A line is read as text with numbers or LaTeX in it; if it has no LaTeX marks, as `(1, 2)`, also as LaTeX,
    and only so if that is a number, a pair or a set: else `5(2)` would be two guesses, 5 and 7.
    """
    if is_boxed:
        return is_equal(gold, _boxed(answer))
    said = NEGATED.sub(" ", answer)
    if MARKED.search(said):
        return is_equal(gold, said)
    as_latex = _boxed(said.rstrip("."))
    return is_equal(gold, as_latex) or (not _is_value(as_latex) and is_equal(gold, said))


def _is_value(answer: str) -> bool:
    """Whether LaTeX is a value without variables; words are read as products of variables.

    `- 4` is none: it may be the number, or an item of a list. Nor is `22/7 ≈ 3.14`, read up to there alone.
    """
    try:
        found = parse(answer, parsing_timeout=0)
    except (RecursionError, MemoryError, OverflowError):
        return False
    is_open = answer.startswith("\\boxed{- ") or "≈" in answer or "approx" in answer
    return bool(found) and isinstance(found[0], Basic) and not found[0].free_symbols and not is_open


def is_equal(gold: str, answer: str) -> bool:
    """Whether an answer, as text with or without LaTeX, equals the gold answer. Raises: Unscorable."""
    wanted = _parsed_gold(gold)
    try:
        return bool(verify(list(wanted), parse(answer, parsing_timeout=0), timeout_seconds=None))
    except (RecursionError, MemoryError, OverflowError):  # of what only looks like an answer
        return False


@lru_cache(GOLDS)
def _parsed_gold(gold: str) -> tuple[Any, ...]:
    parsed = parse(gold if "$" in gold or "\\boxed" in gold else _boxed(gold), parsing_timeout=0)
    if not parsed:
        raise Unscorable(
            f"math-verify cannot read the gold answer {gold!r:.200}; expected a number or expression."
            " If the column holds a whole solution, give `answer_after`, the characters before the answer."
        )
    return tuple(parsed)


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
