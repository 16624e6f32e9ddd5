"""Finds the answer in a response: after the thinking, in a box, after `the answer is`, or in the last line.

Invariants: pure; time is linear in the length of the response, whatever it contains.
"""

import re
from typing import Literal

MOST_CHARS = 2000
"""Longest answer; of a longer line the end is taken."""
BOX = re.compile(r"\\(?:boxed|fbox)\s{0,8}")
SAID = re.compile(
    r"\banswers?\b[*_]{0,3}(?:\s{1,4}(?:is|are|equals|would be)\b\s{0,4}:?|\s{0,4}[:=])"
    r"|#{3,6}(?=[ \t]{0,4}-?[\d\\$])",
    re.IGNORECASE,
)
Place = Literal["auto", "boxed", "last_line"]


def after_thinking(text: str) -> str:
    """The response after its thinking, if the thinking was closed."""
    return text.rpartition("</think>")[2]


def last_box(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`; None without one.

    Also the word after `\boxed ` without braces.
    """
    ends = _closing(text)
    for match in reversed(list(BOX.finditer(text))):
        begin = match.end()
        if text[begin : begin + 1] != "{":
            word = text[begin : begin + MOST_CHARS].split(None, 1)
            bare = word[0].rstrip("$.,;") if word and match.group()[-1].isspace() else ""
            if bare:
                return bare
        elif begin in ends and ends[begin] - begin <= MOST_CHARS:
            return text[begin + 1 : ends[begin]].strip()
    return None


def _closing(text: str) -> dict[int, int]:
    """The place of the closing brace of each closed brace. `\\{` is no brace."""
    found: dict[int, int] = {}
    opened: list[int] = []
    is_escaped = False
    for place, sign in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif sign == "\\":
            is_escaped = True
        elif sign == "{":
            opened.append(place)
        elif sign == "}" and opened:
            found[opened.pop()] = place
    return found


def last_said(text: str) -> str | None:
    """The text after the last `the answer is`, `Answer:` or `####`; None without such words.

    It ends with its line, or is the next line with text if nothing follows there.
    """
    last = None
    for match in SAID.finditer(text):
        last = match.end()
    if last is None:
        return None
    lines = [line for line in text[last : last + 2 * MOST_CHARS].split("\n") if bare(line)]
    return bare(lines[0]) if lines else None


def last_line(text: str) -> str | None:
    """The last line that is not empty; None without one."""
    for line in reversed(text.split("\n")):
        if bare(line):
            return bare(line)[-MOST_CHARS:]
    return None


def bare(text: str) -> str:
    """The text without spaces, emphasis marks and code fences around it."""
    found = text.strip()
    stop = found[-1:] if found[-1:] in (".", ",", ";", "!") else ""
    inner = found.removesuffix(stop).strip()
    if stop and inner.endswith(("*", "_", "`")):  # `**36**.`
        found = inner.strip("*_`").strip() + stop
    found = found.strip("*_`").strip()
    return found[1:].strip() if found.startswith(("**", "__")) else found


def find_answer(text: str, place: Place = "auto") -> tuple[str, bool] | None:
    """The answer of a response, and whether it was in a box; None without an answer."""
    said = after_thinking(text)
    if place != "last_line" and (box := last_box(said)) is not None:
        return box, True
    if place == "boxed":
        return None
    found = (last_said(said) if place == "auto" else None) or last_line(said)
    return None if found is None else (found, False)
