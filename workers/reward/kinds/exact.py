"""The reward `exact`: 1 if the answer in the response is that of the data, letter by letter."""

import re
from collections.abc import Callable
from typing import Any

from protocol.rewards.kinds import ExactReward
from workers.reward.kinds.interface import Place, gold_answer


def make(options: ExactReward, place: Place) -> Callable[..., float]:
    """A function of one response."""
    pattern = re.compile(options.pattern) if options.pattern else None

    def score(completion: str, **columns: Any) -> float:
        gold = gold_answer(columns, options.answer, options.answer_after)
        found = completion.strip() if pattern is None else last_match(pattern, completion)
        if found is None:
            return 0.0
        if options.ignore_case:
            return float(found.casefold() == gold.casefold())
        return float(found == gold)

    return score


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match, or the whole match without a group; None without a match."""
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        last = match
    if last is None:
        return None
    return (last.group(1 if pattern.groups else 0) or "").strip()
