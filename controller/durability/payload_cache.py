"""Payload of groups in memory: one group, a bounded pool of groups, and reports that wait as they came."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import Self

import numpy as np

from controller.durability.kept_sets import KeptSets
from protocol.messages import BYTES_KINDS, ITEM_BYTES, Piece, Stretch


class Held:
    """All payload of one group."""

    __slots__ = ("kept_sets", "prompt", "responses", "row")

    def __init__(self) -> None:
        self.row: bytes | None = None
        self.prompt: bytes | None = None
        self.responses: dict[tuple[int, int], tuple[bytearray, bytearray]] = {}
        """By member and attempt: tokens and logprobs, as far as they go without a hole."""
        self.kept_sets: dict[tuple[int, int], KeptSets] = {}

    def part(self, piece: Piece) -> bytes | bytearray | None:
        """All that is held of the response or record that a piece is cut from."""
        if piece.kind == "row":
            return self.row
        if piece.kind == "prompt":
            return self.prompt
        if piece.kind in ("kept_codes", "kept_words"):
            sets = self.kept_sets.get((piece.member, piece.attempt)) or KeptSets()
            return sets.codes(piece.count) if piece.kind == "kept_codes" else sets.words(piece.count)
        pair = self.responses.get((piece.member, piece.attempt))
        return None if pair is None else pair[piece.kind == "logprobs"]

    def response(self, member: int, attempt: int) -> tuple[bytearray, bytearray]:
        """The tokens and logprobs of one attempt, which the caller extends."""
        pair = self.responses.get((member, attempt))
        if pair is None:
            pair = self.responses[member, attempt] = (bytearray(), bytearray())
        return pair

    def put(self, stretch: Stretch) -> None:
        """Take a record that is no part of a report: a row, a prompt, a whole response."""
        if stretch.kind == "row":
            self.row = self.row or stretch.data
        elif stretch.kind == "prompt":
            self.prompt = self.prompt or stretch.data
        elif stretch.kind in BYTES_KINDS:
            pass  # needed once at most, and read from the file then
        elif stretch.kind == "kept_codes":
            self.put_kept(stretch.member, stretch.attempt, stretch.start, stretch.data)
        else:
            part = self.response(stretch.member, stretch.attempt)[stretch.kind == "logprobs"]
            if len(part) == ITEM_BYTES * stretch.start:
                part += stretch.data

    def put_kept(self, member: int, attempt: int, start: int, record: bytes) -> None:
        """Take the kept sets of some tokens of a response."""
        sets = self.kept_sets.get((member, attempt))
        if sets is None:
            sets = self.kept_sets[member, attempt] = KeptSets()
        sets.put(start, record)

    @property
    def size_bytes(self) -> int:
        """The size of everything that is held."""
        fixed = len(self.row or b"") + len(self.prompt or b"")
        fixed += sum(sets.size_bytes for sets in self.kept_sets.values())
        return fixed + sum(len(tokens) + len(logprobs) for tokens, logprobs in self.responses.values())


class Pool:
    """Groups in memory, the oldest first; when all are too large together, the oldest go."""

    def __init__(self, most_bytes: int) -> None:
        self.groups: dict[int, Held] = {}
        self.size_bytes = 0
        self._open: dict[tuple[int, int, int], tuple[bytearray, bytearray]] = {}
        """Tokens and logprobs of responses to which tokens were added here."""
        self._most_bytes = most_bytes

    def clear(self) -> None:
        """Forget all."""
        self.groups.clear()
        self._open.clear()
        self.size_bytes = 0

    def add(self, group: int, held: Held) -> None:
        """Take a group."""
        self.groups[group] = held
        self.grow(held.size_bytes, keep=group)

    def take(self, group: int) -> Held | None:
        """Remove a group and return it, if it is here."""
        held = self.groups.pop(group, None)
        if held is not None:
            self.size_bytes -= held.size_bytes
            for member, attempt in held.responses:
                self._open.pop((group, member, attempt), None)
        return held

    def response(self, key: tuple[int, int, int]) -> tuple[bytearray, bytearray] | None:
        """Tokens and logprobs of (group, member, attempt), to be extended; None if its group is not here."""
        pair = self._open.get(key)
        if pair is None and (held := self.groups.get(key[0])) is not None:
            pair = self._open[key] = held.response(*key[1:])
        return pair

    def extend(
        self, key: tuple[int, int, int], start: int, tokens: bytes, logprobs: bytes, record: bytes = b""
    ) -> bool:
        """Add tokens to the response (group, member, attempt).

        Returns False if the group has to be read from the file: the tokens begin behind a hole, or overlap
        only in part with what is here.
        """
        pair = self.response(key) if tokens else None
        if pair is None:
            return True
        there, begin = len(pair[0]), ITEM_BYTES * start
        if there == begin:
            pair[0].extend(tokens)
            pair[1].extend(logprobs)
            if record:
                self.groups[key[0]].put_kept(*key[1:], start, record)
            self.grow(2 * len(tokens) + len(record), keep=key[0])
            return True
        return there >= begin + len(tokens)

    def move(self, group: int, other: "Pool") -> None:
        """Hand a group to another pool, if it is here."""
        held = self.take(group)
        if held is not None:
            other.add(group, held)

    def grow(self, size_bytes: int, *, keep: int) -> None:
        """Note that its groups have become larger; drop the oldest, but not `keep`, until they fit."""
        self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes and len(self.groups) > 1:
            self.take(next(group for group in self.groups if group != keep))


Response = tuple[int, int, int]
"""(group, member, attempt)."""
Part = tuple[Response, int, bytes, bytes]
"""Of a response from a token on: tokens and logprobs."""
NEW = -1  # the row of a response that is new to a series


class ReportSeries:
    """Consecutive reports of one worker: the numbers of their records and, while it is open, the reports.

    Handing the tokens of a report to its responses costs some work for each response. Several reports wait
    here, as they came, so that this work is done once for all of them. Invariant: tokens that were handed
    over, and those of a group that was released, are not handed over again.
    """

    __slots__ = (
        "_came", "_names", "_places", "_responses", "_rows", "deltas", "is_open", "known", "needed",
        "numbers", "size_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Of the records."""
        self.needed = 0
        """Groups that have a part in them and still need it."""
        self.known: set[int] = set()
        """Those groups, while it is open."""
        self.is_open = True
        self.size_bytes = self.deltas = 0
        """Of the reports that wait."""
        self._rows: dict[Response, int] = {}  # index of each response of these reports in `_responses`
        self._responses: list[Response | None] = []  # None: handed over
        self._came: list[tuple[list[int], tuple[int, ...], tuple[int, ...], bytes, bytes]] = []
        self._names: list[tuple[int, ...]] = []  # groups, members and attempts of the last report
        self._places: list[int] = []  # and their indices in `_responses`

    @classmethod
    def closed(cls, number: int) -> Self:
        """A closed series of one record, whose tokens were handed over already."""
        made = cls()
        made.is_open = False
        made.numbers.append(number)
        return made

    def take(self, columns: Sequence[tuple[int, ...]], tokens: bytes, logprobs: bytes) -> list[int]:
        """Keep a report: groups, members, attempts, starts, counts; returns groups that may be new here."""
        *names, starts, counts = columns
        new = list[int]()
        if names != self._names:  # mostly a report is about the responses of the one before
            keys = list(zip(*names, strict=True))
            places = list(map(self._rows.get, keys, repeat(NEW)))
            place = 0
            for _ in range(places.count(NEW)):
                place = places.index(NEW, place)
                new.append(keys[place][0])
                places[place] = self._row_of(keys[place])
            self._names, self._places = names, places
        self._came.append((self._places, starts, counts, tokens, logprobs))
        self.size_bytes += len(tokens) + len(logprobs)
        self.deltas += len(counts)
        return new

    def _row_of(self, key: Response) -> int:
        """The index of a response, which may be new: a report may name it twice."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._responses)
            self._responses.append(key)
        return row

    def leave_out(self, group: int) -> list[tuple[Response, int]]:
        """Count the tokens of a group as handed over; returns its responses and their indices."""
        found = [(key, row) for key, row in self._rows.items() if key[0] == group]
        for key, row in found:
            del self._rows[key]
            self._responses[row] = None
        self._names = []
        return found

    def of_group(self, group: int) -> Iterator[Part]:
        """Hand over the tokens of a group, each response in order."""
        for key, row in self.leave_out(group):
            yield from self._parts(key, row)

    def of_response(self, key: Response) -> Iterator[Part]:
        """Hand over the tokens of a response, in order."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._responses[row], self._names = None, []
            yield from self._parts(key, row)

    def _parts(self, key: Response, row: int) -> Iterator[Part]:
        for rows, starts, counts, tokens, logprobs in self._came:
            place = -1
            for _ in range(rows.count(row)):  # one report may name it twice
                place = rows.index(row, place + 1)
                begin = ITEM_BYTES * sum(counts[:place])
                end = begin + ITEM_BYTES * counts[place]
                yield key, starts[place], tokens[begin:end], logprobs[begin:end]

    def close(self) -> Iterator[Part]:
        """Close it and hand over what is left: each response in order, in one piece where possible."""
        if self._came:
            yield from self._sorted()
        self.forget()

    def _sorted(self) -> Iterator[Part]:
        """The parts for `close`: numpy sorts all tokens by response, so that no delta costs an object."""
        columns = list(zip(*self._came, strict=True))
        rows, starts, counts = (np.fromiter(chain.from_iterable(one), np.int64) for one in columns[:3])
        begins, order = np.cumsum(counts) - counts, np.argsort(rows, kind="stable")
        rows, starts, counts = rows[order], starts[order], counts[order]
        ends = np.cumsum(counts)
        items = np.repeat(begins[order] - ends + counts, counts) + np.arange(ends[-1])
        tokens, logprobs = (
            np.frombuffer(b"".join(frames), np.int32)[items].tobytes() for frames in columns[3:]
        )
        is_same = rows[1:] == rows[:-1]
        goes_on = [True, *(~is_same | (starts[1:] == (starts + counts)[:-1])).tolist()]
        lasts = [*np.flatnonzero(~is_same).tolist(), len(rows) - 1]  # the last delta of each response
        places, cuts = starts.tolist(), [0, *(ITEM_BYTES * ends).tolist()]
        first = 0
        for row, last in zip(rows[lasts].tolist(), lasts, strict=True):
            if (key := self._responses[row]) is not None:
                is_whole = all(goes_on[first : last + 1])  # else one came twice, or there is a hole
                steps = [first, last + 1] if is_whole else list(range(first, last + 2))
                for step, after in pairwise(steps):
                    begin, end = cuts[step], cuts[after]
                    yield key, places[step], tokens[begin:end], logprobs[begin:end]
            first = last + 1

    def forget(self) -> None:
        """Drop the reports and be closed: only the numbers of the records are still needed."""
        self.is_open, self.size_bytes, self.deltas = False, 0, 0
        self.known, self._rows, self._responses, self._came, self._names = set(), {}, [], [], []


class Newest:
    """The open series of each worker, and for each group the open series that it has a part in."""

    def __init__(self) -> None:
        self._open: dict[str, ReportSeries] = {}
        self._of_group: dict[int, list[ReportSeries]] = {}

    def of(self, source: str) -> ReportSeries:
        """The series that the next report of this worker belongs to."""
        reports = self._open.get(source)
        if reports is None or not reports.is_open:
            reports = self._open[source] = ReportSeries()
        return reports

    def note(self, group: int, reports: ReportSeries) -> bool:
        """Note that a group has a part in these reports; returns whether that is new."""
        there = self._of_group.setdefault(group, [])
        if reports not in there:
            there.append(reports)
        is_new = group not in reports.known
        reports.known.add(group)
        return is_new

    def close(self, source: str) -> Iterator[Part]:
        """Hand over all tokens that this worker has reported."""
        reports = self._open.pop(source, None)
        if reports is None:
            return iter(())
        for group in reports.known:
            there = self._of_group.get(group, [])
            if reports in there:
                there.remove(reports)
                if not there:
                    del self._of_group[group]
        return reports.close()

    def of_response(self, source: str, response: Response) -> Iterator[Part]:
        """Hand over the tokens of a response that a worker has reported."""
        reports = self._open.get(source)
        return iter(()) if reports is None else reports.of_response(response)

    def gather(self, group: int) -> Iterator[Part]:
        """Hand over the tokens of a group, whichever workers reported them."""
        for reports in self._of_group.pop(group, ()):
            yield from reports.of_group(group)

    def forget(self, group: int) -> None:
        """Drop the tokens of a group, which was released."""
        for reports in self._of_group.pop(group, ()):
            reports.leave_out(group)
