"""The kept samples of a run for pages: the list, single samples, and pages of search results.

Invariants: an answer takes no longer than FIND_S of reading, and then says how much is left; a response is
told by a few numbers and how it begins.
"""

import time
from collections.abc import Mapping
from math import isnan
from typing import Any

from controller.durability.recording import Recording
from controller.history.sample_index import Key, digest_of
from controller.history.sample_search import SampleQuery, SampleSearch, query_of
from controller.history.sample_text import SampleGroup, SampleReader, rounded
from protocol.errors import RunError

FIND_S = 0.3  # of reading, before others get their answers
BEGINNING_TOKENS, BEGINNING = 48, 120  # of a response, and characters of it, in a list
SEARCHED_TOKENS = 8_192  # of a response, in which the place of what was searched for is shown
BEFORE = 40  # characters before what was searched for
Json = dict[str, Any]


class ShownSamples:
    """The samples of one run, for one thread at a time."""

    def __init__(self) -> None:
        self._search = SampleSearch()

    def kept(self, recording: Recording) -> Json:
        """Their keys, oldest first."""
        reader = SampleReader(recording)
        return {"kept": reader.kept(), "has_text": reader.has_text}

    def one(self, recording: Recording, step: int, group: int) -> Json:
        """One sample with all its tokens. Raises: RunError if it is not kept."""
        found, kept = SampleReader(recording).read(step, group), recording.sample(step, group)
        if found is None or kept is None:
            raise RunError(f"No sample of group {group} of step {step} is kept; expected one of the list.")
        return sample_as_json(found) | {"prompt_digest": f"{digest_of(kept):016x}"}

    def find(self, recording: Recording, words: Mapping[str, str]) -> Json:
        """A page of responses, of how many, and what is left to read; `refused` says what makes no sense."""
        try:
            query, refused = query_of(words), ""
        except RunError as error:
            query, refused = SampleQuery(), str(error)
        reader, end = SampleReader(recording), time.monotonic() + FIND_S
        found = self._search.find(
            recording,
            query,
            texts=lambda key: reader.texts(*key),
            is_late=lambda: time.monotonic() >= end,
        )
        begins = _beginnings(reader, found.lines, query.text)
        names = {number: name for name, number in self._search.index.sources.items()}
        return {
            "found": [self._line(line, names, begins) for line in found.lines],
            "count": found.count,
            "page": found.page,
            "left": found.left,
            "sources": sorted(name for name in names.values() if name),
            "refused": refused,
            "damaged": list(self._search.index.damaged.values())[:1],
        }

    def _line(self, line: Any, names: Mapping[int, str], begins: Mapping[tuple[Key, int], str]) -> Json:
        step, ages = int(line["step"]), int(line["ages"])
        key = (step, int(line["group"]))
        return {
            "step": step,
            "group": key[1],
            "member": int(line["member"]),
            **{name: _plain(float(line[name])) for name in ("reward", "advantage", "drift", "repeats")},
            "length": int(line["length"]),
            "age": max(0, ages.bit_length() - 1),
            "versions": [step - 1 - age for age in reversed(range(64)) if ages >> age & 1],
            "is_cut": bool(line["is_cut"]),
            "is_equal": bool(line["is_equal"]),
            "source": names[int(line["source"])],
            "text": begins.get((key, int(line["member"])), ""),
        }


def _beginnings(reader: SampleReader, lines: Any, wanted: str) -> dict[tuple[Key, int], str]:
    """How each response begins, or goes on around what was searched for."""
    members: dict[Key, set[int]] = {}
    for step, group, member in zip(
        *(lines[name].tolist() for name in ("step", "group", "member")), strict=True
    ):
        members.setdefault((step, group), set()).add(member)
    most = SEARCHED_TOKENS if wanted else BEGINNING_TOKENS
    found: dict[tuple[Key, int], str] = {}
    for key, of in members.items():
        try:
            texts = reader.texts(*key, of=of, most=most)
        except RunError:  # damaged since it was read
            texts = None
        for member, said in (texts or ("", {}))[1].items():
            at = max(0, said.casefold().find(wanted.casefold()) - BEFORE)
            found[key, member] = ("…" if at else "") + said[at : at + BEGINNING]
    return found


def _plain(value: float) -> float | None:
    return None if isnan(value) else round(value, 6)


def sample_as_json(sample: SampleGroup) -> Json:
    """Tokens as columns, so that a response of 1,000 tokens is some 20 kB."""
    return {
        "step": sample.step,
        "group": sample.group,
        "why": sample.why,
        "prompt": sample.prompt,
        "row": sample.row,
        "staleness": sample.staleness,
        "responses": [
            {
                "member": one.member, "reward": one.reward, "parts": one.parts, "advantage": one.advantage,
                "ending": one.ending,
                "texts": [token.text for token in one.tokens],
                "logprobs": [rounded(token.logprob, 4) for token in one.tokens],
                "drifts": [rounded(token.drift, 4) for token in one.tokens],
                "weights": [rounded(token.weight, 4) for token in one.tokens],
                "versions": [token.policy_version for token in one.tokens],
            }
            for one in sample.responses
        ],
    }  # fmt: skip
