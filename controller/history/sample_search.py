"""Searches responses of the kept samples: filters, sorts, and a search in their texts.

Invariants: a search stops when it is late, and says how many samples are left; the next search goes on there;
a page has at most PER_PAGE responses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.history.sample_index import OLDEST, IsLate, Key, SampleIndex
from protocol.errors import RunError

PER_PAGE = 50
LONGEST_TEXT = 200  # characters of a searched text
MOST_SEARCHES = 4  # texts whose results are remembered
SORTS = ("newest", "reward", "advantage", "length", "drift", "repeats")
ONLY = {
    "cut": "responses that were cut off",
    "partial": "responses of several policy versions",
    "equal": "groups whose rewards are all equal",
    "held_out": "answers to held-out prompts that failed",
}
Texts = tuple[str, dict[int, str]]
"""A prompt, and its responses by member."""
ReadTexts = Callable[[Key], Texts | None]


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """Filters and order of a search; a field at its default filters nothing."""

    step: int | None = None
    group: int | None = None
    version: int | None = None  # which sampled a token of the response
    reward_from: float | None = None
    reward_to: float | None = None
    age: int = 0  # least age of its oldest token, in versions
    source: str | None = None
    prompt: int | None = None  # digest of the index
    only: tuple[str, ...] = ()  # kinds of ONLY, all of which have to hold
    text: str = ""  # in prompt or response, whatever the case
    sort: str = "newest"
    is_ascending: bool = False
    page: int = 0

    def __post_init__(self) -> None:
        """Raises: RunError."""
        if self.sort not in SORTS:
            raise RunError(f"Samples are not sorted by {self.sort!r}; expected {', '.join(SORTS)}.")
        if unknown := [word for word in self.only if word not in ONLY]:
            raise RunError(f"{unknown[0]!r} is no kind of sample; expected {', '.join(ONLY)}.")
        if len(self.text) > LONGEST_TEXT:
            raise RunError(
                f"A text of {len(self.text)} characters is not searched for; expected {LONGEST_TEXT} at "
                "most. A part of it will do."
            )

    @property
    def is_empty(self) -> bool:
        """Whether the query asks for all samples, the newest first."""
        return self == SampleQuery(page=self.page)


class FoundSamples(NamedTuple):
    """A page of results, as far as samples were read."""

    lines: np.ndarray  # of the index
    count: int  # of all pages
    page: int
    left: int  # samples that are not yet read or searched


class SampleSearch:
    """Searches the samples of one run, and keeps the index between searches."""

    def __init__(self) -> None:
        self.index = SampleIndex()
        self._searches: dict[str, dict[Key, frozenset[int]]] = {}  # by text: members, where it was found

    def find(
        self, recording: Recording, query: SampleQuery, *, texts: ReadTexts, is_late: IsLate
    ) -> FoundSamples:
        """One page of results; `texts` reads a sample, None if it is deleted. Raises: RunError."""
        left = self.index.follow(recording, is_late)
        wanted = selected(self.index, query)
        if query.text:
            wanted, unsearched = self._search(wanted, query.text.casefold(), texts, is_late)
            left += unsearched
        ordered = in_order(wanted, query)
        page = min(max(query.page, 0), max(0, (len(ordered) - 1) // PER_PAGE))
        return FoundSamples(ordered[page * PER_PAGE : (page + 1) * PER_PAGE], len(ordered), page, left)

    def _search(
        self, wanted: np.ndarray, text: str, texts: ReadTexts, is_late: IsLate
    ) -> tuple[np.ndarray, int]:
        """Lines of responses with the text, and the number of samples that are not searched yet."""
        known = self._searches.pop(text, {})
        self._searches[text] = known  # the newest
        while len(self._searches) > MOST_SEARCHES:
            del self._searches[next(iter(self._searches))]
        keys = dict.fromkeys(_keys(wanted))
        missing = [key for key in reversed(keys) if key not in known]
        left = 0
        for place, key in enumerate(missing):
            known[key] = _members_with(text, texts, key)
            if is_late():
                left = len(missing) - place - 1
                break
        rows = zip(_keys(wanted), wanted["member"].tolist(), strict=True)
        return wanted[[member in known.get(key, ()) for key, member in rows]], left


def _keys(lines: np.ndarray) -> list[Key]:
    return list(zip(lines["step"].tolist(), lines["group"].tolist(), strict=True))


def _members_with(text: str, texts: ReadTexts, key: Key) -> frozenset[int]:
    try:
        found = texts(key)
    except RunError:  # damaged since it was read
        found = None
    if found is None:
        return frozenset()
    prompt, responses = found
    is_in_all = text in prompt.casefold()
    return frozenset(member for member, said in responses.items() if is_in_all or text in said.casefold())


def selected(index: SampleIndex, query: SampleQuery) -> np.ndarray:
    """The lines that pass the query's filters, except that on text, oldest first."""
    table = index.table
    keep = np.ones(len(table), bool)
    if query.step is not None:
        keep &= table["step"] == query.step
    if query.group is not None:
        keep &= table["group"] == query.group
    if query.version is not None:
        age = table["step"] - 1 - query.version
        bit = np.clip(age, 0, OLDEST).astype(np.uint64)
        keep &= (age >= 0) & ((table["ages"] >> bit) & np.uint64(1) == 1)
    if query.reward_from is not None:
        keep &= table["reward"] >= query.reward_from
    if query.reward_to is not None:
        keep &= table["reward"] <= query.reward_to
    if query.age > 0:
        keep &= table["ages"] >= (np.uint64(1) << np.uint64(min(query.age, OLDEST)))
    if query.source is not None:
        keep &= table["source"] == index.sources.get(query.source, -1)
    if query.prompt is not None:
        keep &= table["prompt"] == np.uint64(query.prompt)
    ages = table["ages"]
    kinds = {
        "cut": table["is_cut"],
        "equal": table["is_equal"],
        "held_out": table["group"] >= FIRST_EVALUATION_GROUP,
        "partial": (ages != 0) & ((ages & (ages - np.uint64(1))) != 0),
    }
    for word in query.only:
        keep &= kinds[word]
    return table[keep]


def in_order(lines: np.ndarray, query: SampleQuery) -> np.ndarray:
    """The lines in the query's order; of equals the newest first, and lines without the number last."""
    newest_first = lines[::-1]
    if query.sort == "newest":
        return lines if query.is_ascending else newest_first
    values = newest_first[query.sort].astype(float)  # nan sorts last, with either sign
    return newest_first[np.argsort(values if query.is_ascending else -values, kind="stable")]


def query_of(words: Mapping[str, str]) -> SampleQuery:
    """The query in the parameters of a URL. Raises: RunError if one is malformed."""
    return SampleQuery(
        step=_whole(words, "of_step"),
        version=_whole(words, "version"),
        reward_from=_real(words, "reward_from"),
        reward_to=_real(words, "reward_to"),
        age=_whole(words, "age") or 0,
        source=words.get("source"),
        prompt=_digest(words),
        only=tuple(word for word in words.get("only", "").split(",") if word),
        text=words.get("text", ""),
        sort=words.get("sort", "newest"),
        is_ascending=words.get("order") == "up",
        page=_whole(words, "part") or 0,
    )


def _whole(words: Mapping[str, str], name: str) -> int | None:
    word = words.get(name, "")
    if not word:
        return None
    if not (word.isascii() and word.isdecimal() and len(word) <= 15):
        raise RunError(f"{word[:40]!r} is no {name.removeprefix('of_')}; expected a whole number from 0.")
    return int(word)


def _real(words: Mapping[str, str], name: str) -> float | None:
    word = words.get(name, "")
    if not word:
        return None
    try:
        found = float(word)
    except ValueError:
        found = np.nan
    if not np.isfinite(found):
        raise RunError(f"{word[:40]!r} is no {name.replace('_', ' ')}; expected a number such as 0.5.")
    return found


def _digest(words: Mapping[str, str]) -> int | None:
    word = words.get("prompt", "")
    if not word:
        return None
    try:
        found = int(word, 16)
    except ValueError:
        found = -1
    if not 0 <= found < 1 << 64:
        raise RunError(f"{word[:40]!r} names no prompt; expected 16 hexadecimal digits of a sample.")
    return found
