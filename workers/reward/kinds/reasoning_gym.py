"""The reward `reasoning_gym`: how a data set of reasoning-gym scores the answer in the response."""

from collections.abc import Callable, Mapping
from typing import Any

from reasoning_gym import get_score_answer_fn

from protocol.rewards.kinds import ReasoningGymReward, find
from workers.reward.kinds.answers import after_thinking, last_box, last_said
from workers.reward.kinds.cpu_limit import within
from workers.reward.kinds.interface import Place, Unscorable

PAIRED = ("arc_agi", "rearc")  # compare tuples of tuples, which come back from JSON as lists
TAG, END = "<answer>", "</answer>"


def make(options: ReasoningGymReward, place: Place) -> Callable[..., float]:
    """A function of one response."""
    scorers: dict[str, Any] = {}

    def score(completion: str, **columns: Any) -> float:
        entry = find(columns, options.entry)
        entry = dict(entry) if isinstance(entry, Mapping) else columns
        name = options.dataset or find(entry, "metadata.source_dataset")
        if not isinstance(name, str) or "answer" not in entry:
            raise Unscorable(
                f"The row has the columns {', '.join(columns)}; expected an item of reasoning-gym (question, "
                f"answer, metadata) in `{options.entry}` or as the row itself, and in its metadata "
                "`source_dataset`, or else the option `dataset`."
            )
        if name not in scorers:
            try:
                scorers[name] = get_score_answer_fn(name)
            except ValueError as error:
                raise Unscorable(f"reasoning-gym has no data set {name!r:.80}: {error}") from None
        answer = find_answer(completion)
        if name in PAIRED:
            entry["metadata"] = {key: _as_tuples(value) for key, value in dict(entry["metadata"]).items()}
        return within(options.cpu_s, lambda: _scored(scorers[name], answer, entry)) or 0.0

    return score


def _scored(scorer: Callable[..., Any], answer: str, entry: Mapping[str, Any]) -> float:
    """The score; 0 where it raises for this answer, as some do for what they cannot read.

    Raises: whatever the scorer raises for the item's own answer, too: then it is no item.
    """
    try:
        return float(scorer(answer=answer, entry=entry))
    except Exception:  # whatever it raises at what a policy may say
        scorer(answer=entry["answer"], entry=entry)
        return 0.0


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list | tuple) else value


def find_answer(completion: str) -> str:
    """The content of the last <answer> tags, of a box, or after `the answer is`; else the whole response."""
    said = after_thinking(completion)
    closed = said.split(END)[:-1]  # no regular expression: a tag repeated thousands of times takes it minutes
    if tagged := [before.partition(TAG)[2] for before in closed if TAG in before]:
        return tagged[-1].strip()
    found = last_box(said) or last_said(said)
    return said.strip() if found is None else found
