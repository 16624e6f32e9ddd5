"""The reward `choice`: 1 if the letter that the response chooses is that of the data.

Invariants: a response that names two letters, or none, scores 0; a letter that it rules out, as in `not A`
and `A is wrong`, is not named.
"""

import re
from collections.abc import Callable
from typing import Any

from protocol.rewards.kinds import ChoiceReward, find
from workers.reward.kinds.answers import after_thinking, bare, last_box, last_line, last_said
from workers.reward.kinds.interface import Place, Unscorable, gold_answer

TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\b")
PRONOUN = (
    r"(?<![\w'])(?:I,? (?!(?:or|and|but|because|since|for|from|with|in|on|not|over|rather|to|best)\b)"
    r"(?:guess|always|(?<=, )[a-z]+|[a-z]+(?<!s)(?:'t)?)\b|I, for one\b|I (?=\([a-z]))"
)
"""`I` before a verb without the s of the third person: `I choose`, `I don't`, `I, too,`, not `I is`.

From nine options on, `I` is also a letter, whose verbs have that s.
"""
BETWEEN = (
    r"(?:(?:be|that|think|believe|say|it|it's|its|is|the|option|choice|answer|letter|to|choose|pick)\s{1,4})"
)
RULED_OUT = (
    r"(?i:(?:\b(?:not|cannot|never|neither|nor|except|excluding|rather than|instead of|rules? out|ruled out)"
    rf"|n't|\b(?:anything|everything|all|any) but)\s{{1,4}}{BETWEEN}{{0,4}})[\s(*$]{{0,4}}[LETTERS](?!\w)"
)
"""Words that rule the letter behind them out: `not A`, `isn't option A`, `anything but A`."""
WRONG = (
    r"(?<![\w'])[LETTERS][)*$]{0,4} (?:is|was|are|seems|looks|must be|would be)"
    r"(?:n't| (?:\w+ )?(?:not|wrong|false|incorrect|impossible|ruled out))\b"
)
JOINED = r"(?:[&/,;|+]|\b(?i:or|and|else|then|also|maybe|perhaps|possibly|yes|no|wait)\b)[\W_]{0,4}"
AGAIN = (
    rf"[\W_]{{0,8}}(?:{JOINED}){{1,4}}"
    r"[LETTERS](?!\w)|[\W_]{0,8}[LETTERS](?:[).:;\]}*$]|[\W_]{0,8}$)"
)
"""Behind the first letter of a list: `, B`, `. Or B`, `) B)`, but not `) A and B`, the text of an option."""


def make(options: ChoiceReward, place: Place) -> Callable[..., float]:
    """A function of one response."""

    def score(completion: str, **columns: Any) -> float:
        value = find(columns, options.answer)
        if type(value) is int and 0 <= value < len(options.letters):
            gold: str | None = options.letters[value]
        else:
            text = gold_answer(columns, options.answer, options.answer_after)
            gold = chosen_letter(text, options.letters)
        if gold is None:
            raise Unscorable(
                f"The row has {value!r:.80} in the column `{options.answer}`; expected one of the letters "
                f"{', '.join(options.letters)}, or an index from 0 to {len(options.letters) - 1}."
            )
        return float(chosen_letter(completion, options.letters) == gold)

    return score


def chosen_letter(text: str, letters: str) -> str | None:
    """The letter that a response ends with, boxes, or calls its answer; None if that is not a letter."""
    said = after_thinking(text)
    for found in (last_box(said), last_said(said), last_line(said)):
        if found is not None:
            return _only_letter(bare(TEXT.sub("", found)), letters)
    return None


def _only_letter(text: str, letters: str) -> str | None:
    """`C`, `(c)`, `C. because`, `option C`: the letter, unless there is another one."""
    for pattern in (RULED_OUT, WRONG, PRONOUN):
        text = re.sub(pattern.replace("LETTERS", letters), " ", text)
    begin = re.match(rf"[\s({{\[*$]{{0,8}}([{letters}{letters.lower()}])(?![\w'])", text)
    if begin:
        rest = text[begin.end() :]
        if re.match(AGAIN.replace("LETTERS", letters), rest) or _is_list(begin[1], rest, letters):
            return None
        is_set_off = not rest or rest[0] in ").:,;]}*$"
        if is_set_off and (begin[1].isupper() or not rest.strip(")]}*$ .:")):
            return begin[1].upper()
    standing = set(re.findall(rf"(?<![\w'])([{letters}])(?![\w'])", text))
    return standing.pop() if len(standing) == 1 and not _is_article(text, standing) else None


def _is_list(first: str, rest: str, letters: str) -> bool:
    """Whether the options are listed: `A) 1 B) 2`, `A: yes, B: yes`."""
    following = letters[letters.index(first.upper()) + 1 :][:1]
    return bool(following and re.search(rf"(?<![\w']){following}(?:[):]|\. \S)", rest))


def _is_article(text: str, standing: set[str]) -> bool:
    """Whether the only letter is the article `A` at the beginning of a sentence."""
    return standing == {"A"} and re.search(r"(?:^|[.!?]\s)A [a-z]", text) is not None
