"""Reports of the tokens that rollout workers sample: most of all messages that a controller receives."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Self

from protocol.messages.pieces import (
    ITEM_BYTES,
    Count,
    Ending,
    Frame,
    Many,
    Party,
    Stretch,
    Version,
    WorkerMessage,
)
from protocol.messages.record import record


class Delta(NamedTuple):
    """New response tokens of one trajectory, all sampled by one policy version."""

    group: Count
    member: Count
    attempt: Count
    start: Count  # tokens of this attempt reported before
    count: Count  # pyright: ignore[reportIncompatibleMethodOverride]  # no tuple method
    policy_version: Version
    ending: Ending


@record
class Generated(WorkerMessage):
    """Progress and endings, in columns: item i of each belongs to delta i.

    Frame 0: tokens of all deltas in order (int32); frame 1: their logprobs (float32). Where `kept_words` is
    said, frames 2 and 3: codes and words of their kept sets (kept_sets.py); without it, each token was
    drawn from the whole vocabulary.

    Columns, because most messages are these: no object is made for a delta, and checks are made of a whole
    column at once.
    """

    tag: ClassVar[int] = 7
    said_by: ClassVar[tuple[Party, ...]] = ("rollout",)
    groups: Many[Count]
    members: Many[Count]
    attempts: Many[Count]
    starts: Many[Count]
    counts: Many[Count]
    policy_versions: Many[Version]
    endings: Many[Ending]
    kept_words: Many[Count] = ()  # of each delta; () where sampling cut nothing off

    def __post_init__(self) -> None:
        lengths = {
            len(self.groups), len(self.members), len(self.attempts), len(self.starts), len(self.counts),
            len(self.policy_versions), len(self.endings),
        }  # fmt: skip
        if len(lengths) > 1:
            raise ValueError(f"its columns have {sorted(lengths)} items; expected equally many")

    @classmethod
    def of(cls, deltas: Iterable[Delta], kept_words: tuple[int, ...] = ()) -> Self:
        """Make the message that reports these deltas."""
        columns = tuple(zip(*deltas, strict=True)) or ((),) * len(Delta._fields)
        return cls(*columns, kept_words=kept_words)

    @property
    def deltas(self) -> tuple[Delta, ...]:
        """The deltas one by one, for code in which speed does not matter."""
        columns = (self.groups, self.members, self.attempts, self.starts, self.counts)
        return tuple(map(Delta, *columns, self.policy_versions, self.endings))

    @property
    def rows(self) -> Iterator[tuple[int, int, int, int, int, int, Ending]]:
        """The columns, row by row: the values of `deltas` without their objects."""
        columns = (self.groups, self.members, self.attempts, self.starts, self.counts)
        return zip(*columns, self.policy_versions, self.endings, strict=True)

    def rows_from(self, first: int) -> Iterator[tuple[int, int, int, int, int, int, Ending]]:
        """The rows from this delta on."""
        if not first:
            return self.rows
        columns = (self.groups, self.members, self.attempts, self.starts, self.counts)
        return zip(
            *(column[first:] for column in (*columns, self.policy_versions, self.endings)), strict=True
        )

    @property
    def keys(self) -> Iterator[tuple[int, int, int]]:
        """(group, member, attempt) of each delta."""
        return zip(self.groups, self.members, self.attempts, strict=True)

    def keys_from(self, first: int) -> Iterator[tuple[int, int, int]]:
        """The keys of the deltas from this one on."""
        return zip(self.groups[first:], self.members[first:], self.attempts[first:], strict=True)

    def incoming_frames(self) -> list[Frame]:
        count = sum(self.counts)
        frames = [Frame("tokens", count), Frame("logprobs", count)]
        if not self.kept_words:
            return frames
        return [*frames, Frame("kept_codes", count), Frame("kept_words", sum(self.kept_words))]

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        tokens, logprobs, *kept = frames
        begin = 0
        for delta, sets in zip(self.deltas, self.kept_sets(kept), strict=True):
            end = begin + ITEM_BYTES * delta.count
            if delta.count:
                yield (
                    delta.group,
                    [
                        Stretch("tokens", delta.member, delta.attempt, delta.start, tokens[begin:end]),
                        Stretch("logprobs", delta.member, delta.attempt, delta.start, logprobs[begin:end]),
                        *([sets] if sets else []),
                    ],
                )
            begin = end

    def kept_sets(self, frames: Sequence[bytes]) -> Iterator[Stretch | None]:
        """For each delta its kept sets out of frames 2 and 3: codes, then words; None where it has none."""
        codes, words = frames or (b"", b"")
        begin = first = 0
        for delta, size in zip(self.deltas, self.kept_words or (0,) * len(self.counts), strict=True):
            end, last = begin + ITEM_BYTES * delta.count, first + ITEM_BYTES * size
            data = codes[begin:end] + words[first:last] if size else b""
            yield Stretch("kept_codes", delta.member, delta.attempt, delta.start, data) if size else None
            begin, first = end, last
