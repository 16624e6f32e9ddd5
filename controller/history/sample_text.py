"""Kept samples as text, each token with its version, logprob, drift and weight.

Invariants: only run.db and the tokenizer's file are read; without a tokenizer, tokens are shown as their
numbers; the joined texts of a response's tokens equal the decoded response.
"""

import json
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.damage import newest_checkpoint
from controller.durability.recording import Recording
from controller.durability.sample_records import KeptSample, advantages_of, mean_advantage
from protocol.messages import GIVEN

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\ufffd"  # ends a text whose last character continues in the next token
log = logging.getLogger("staleflow.samples")
LONGEST_CHARACTER = 8  # tokens; then the text is not UTF-8 at all


@dataclass(frozen=True, slots=True)
class SampleToken:
    """One token of a response."""

    id: int
    text: str
    policy_version: int | None  # which sampled it; None: the environment gave it
    logprob: float | None  # under which it was sampled
    trained_logprob: float | None = None  # under the weights just before it was trained; None: not known
    weight: float | None = None  # factor of its loss by the corrections; None: not known
    advantage: float | None = None  # of its response or turn; None: it was not trained

    @property
    def drift(self) -> float | None:
        """Logprob under the weights just before training minus that at sampling, in nats."""
        if self.logprob is None or self.trained_logprob is None:
            return None
        return self.trained_logprob - self.logprob


@dataclass(frozen=True, slots=True)
class SampleResponse:
    """One response of a group, as it was trained or evaluated."""

    member: int
    reward: float
    parts: dict[str, float]  # of the reward, by name
    advantage: float | None  # mean over its sampled tokens; None: it was not trained
    ending: str
    tokens: tuple[SampleToken, ...]

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(token.text for token in self.tokens)

    @property
    def policy_versions(self) -> list[int]:
        """The versions that sampled it, oldest first."""
        return sorted({token.policy_version for token in self.tokens if token.policy_version is not None})


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """A prompt and all its responses."""

    step: int
    group: int
    why: str  # why it was kept: spread, random, oldest or held out
    row: Any  # JSON of the data source
    prompt: str
    responses: tuple[SampleResponse, ...]

    @property
    def is_held_out(self) -> bool:
        """Whether it was answered for an evaluation, and not trained."""
        return is_held_out(self.group)

    @property
    def is_corrected(self) -> bool:
        """Whether the trainer reported drift and weight of its tokens."""
        return any(token.weight is not None for one in self.responses for token in one.tokens)

    @property
    def staleness(self) -> int:
        """Staleness of the oldest sampled token, in policy versions."""
        versions = [version for one in self.responses for version in one.policy_versions]
        return max(0, self.step - 1 - min(versions, default=self.step - 1))


class SampleReader:
    """Reads the samples of one run."""

    def __init__(self, recording: Recording, *, decode: Decode | None = None) -> None:
        self._recording = recording
        self._decode = decode or find_decoder(recording)
        self.has_text = self._decode is not None
        """Whether a tokenizer was found; else tokens are shown as numbers."""

    def kept(self) -> list[tuple[int, int]]:
        """(step, group) of all kept samples, oldest first. Raises: RunError."""
        return self._recording.sample_keys()

    def newest(self) -> list[tuple[int, int]]:
        """Keys of the newest step's trained samples; held-out ones only if no others are kept."""
        kept = self.kept()
        found = [key for key in kept if not is_held_out(key[1])] or kept
        return [key for key in found if key[0] == found[-1][0]]

    def read(self, step: int, group: int) -> SampleGroup | None:
        """One sample; None if it is not kept (any more). Raises: RunError."""
        found = self._recording.sample(step, group)
        return None if found is None else as_text(found, self._decode or _numbers)

    def texts(
        self, step: int, group: int, *, of: Container[int] | None = None, most: int | None = None
    ) -> tuple[str, dict[int, str]] | None:
        """As `whole_texts`; None if it is not kept (any more). Raises: RunError."""
        found = self._recording.sample(step, group)
        return None if found is None else whole_texts(found, self._decode or _numbers, of=of, most=most)


def is_held_out(group: int) -> bool:
    """Whether a group of this number is one of an evaluation."""
    return group >= FIRST_EVALUATION_GROUP


def as_text(sample: KeptSample, decode: Decode) -> SampleGroup:
    """A sample with its tokens as text."""
    tokens = np.frombuffer(sample.tokens, dtype="<i4").tolist()
    columns = [_numbers_of(blob) for blob in (sample.logprobs, sample.trained, sample.weights)]
    items: list[dict[str, Any]] = sample.facts["items"]
    is_trained = not is_held_out(sample.group)
    columns.append([one for item in items for one in advantages_of(item)] if is_trained else [])
    numbers = zip_longest(*columns)  # of sampled tokens alone
    responses: list[SampleResponse] = []
    begin = 0
    for place, item in enumerate(items):
        runs = [(None if version == GIVEN else version, count) for _, version, count in item["segments"]]
        versions = [version for version, count in runs for _ in range(count)]
        end = begin + len(versions)
        ids = tokens[begin:end]
        likely = [(None,) * len(columns) if version is None else next(numbers) for version in versions]
        found = zip(ids, texts_of(ids, decode), versions, *zip(*likely, strict=True), strict=True)
        responses.append(
            SampleResponse(
                item["member"], item["reward"],
                {name: of[place] for name, of in sample.facts["parts"].items() if of[place] is not None},
                mean_advantage(item) if is_trained else None, item["ending"],
                tuple(SampleToken(*token) for token in found),
            )
        )  # fmt: skip
        begin = end
    prompt = decode(np.frombuffer(sample.prompt, dtype="<i4").tolist())
    row = json.loads(sample.row)
    return SampleGroup(sample.step, sample.group, sample.facts["why"], row, prompt, tuple(responses))


def whole_texts(
    sample: KeptSample, decode: Decode, *, of: Container[int] | None = None, most: int | None = None
) -> tuple[str, dict[int, str]]:
    """The prompt, and responses by member, each decoded at once, which is faster than by token.

    `of`: only these members; `most`: only this many tokens of each.
    """
    tokens = np.frombuffer(sample.tokens, dtype="<i4").tolist()
    found: dict[int, str] = {}
    begin = 0
    for item in sample.facts["items"]:
        end = begin + sum(count for _, _, count in item["segments"])
        if of is None or item["member"] in of:
            found[item["member"]] = decode(tokens[begin : end if most is None else min(end, begin + most)])
        begin = end
    return decode(np.frombuffer(sample.prompt, dtype="<i4").tolist()), found


def _numbers_of(blob: bytes) -> list[float | None]:
    return [number if isfinite(number) else None for number in np.frombuffer(blob, dtype="<f4").tolist()]


def rounded(logprob: float | None, digits: int) -> float | None:
    """A rounded logprob; None stays None."""
    return None if logprob is None else round(logprob, digits)


def texts_of(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each token adds; "" for a token that does not complete a character."""
    texts: list[str] = []
    start = read = 0  # begin of the tokens decoded again for context; begin of the new ones
    for i in range(len(ids)):
        text = decode(ids[start : i + 1])
        if text.endswith(UNFINISHED) and i - read < LONGEST_CHARACTER and i + 1 < len(ids):
            texts.append("")
            continue
        texts.append(text[len(decode(ids[start:read])) :])
        start, read = read, i + 1
    return texts


def find_decoder(recording: Recording) -> Decode | None:
    """The run's tokenizer, from its model's folder, else from its newest checkpoint, which has a copy.

    None if there is none that can be read, or the package `tokenizers` is missing.
    """
    run, path = Path(recording.path).parent, Path(recording.config().model.path)
    newest = newest_checkpoint(run)
    for folder in (run / path, path, *((newest,) if newest else ())):
        file = folder / "tokenizer.json"
        try:
            found = file.stat()
        except OSError:
            continue
        if S_ISREG(found.st_mode):
            return _decoder(str(file), found.st_mtime_ns, found.st_size)
    return None


@lru_cache(maxsize=8)
def _decoder(file: str, changed_ns: int, size: int) -> Decode | None:
    """The decoder of a tokenizer's file, cached until the file changes: a large one takes a second."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the package raises nothing more special
        log.warning("%s is no tokenizer, so tokens are shown by their numbers: %s", file, error)
        return None
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def _numbers(ids: Sequence[int]) -> str:
    return "".join(f"{id} " for id in ids)


def lines_of(sample: SampleGroup) -> Iterator[dict[str, Any]]:
    """A complete JSON object for each response."""
    for one in sample.responses:
        yield {
            "step": sample.step, "group": sample.group, "member": one.member, "kept_for": sample.why,
            "prompt": sample.prompt, "response": one.text, "reward": one.reward, "reward_parts": one.parts,
            "advantage": one.advantage, "ending": one.ending, "policy_versions": one.policy_versions,
            "tokens": [token.id for token in one.tokens],
            "logprobs": [rounded(token.logprob, 5) for token in one.tokens],
            "trained_logprobs": [rounded(token.trained_logprob, 5) for token in one.tokens],
            "weights": [rounded(token.weight, 5) for token in one.tokens],
            "advantages": [rounded(token.advantage, 5) for token in one.tokens],
            "token_versions": [token.policy_version for token in one.tokens],
            "row": sample.row,
        }  # fmt: skip
