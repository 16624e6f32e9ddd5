"""The payload of a run in its database: rows, prompts, and the tokens and logprobs of responses.

Invariants:
- Progress is stored as one record per report (`chunks`): the responses that its tokens belong to, and its
  frames as they came, with the kept sets (protocol/kept_sets.py) where sampling cuts. Each row, each prompt,
  and each response of a group that was scored is a record of its own (`payload`).
- In memory, each group lists the series of consecutive reports of one worker in which it has a part; once all
  groups of a series are settled or dropped, its chunks are deleted, in the same transaction.
- The newest reports of a worker wait in memory as they came: their tokens are handed to the responses many
  reports at a time, or when a group of theirs is fetched.
- The first tokens that arrive for a place of a response stay; a second report of the same place changes
  nothing. Only an encoded prompt is replaced: a worker encodes it again if the first answer did not count.
- Payload is kept only for groups whose row is here: a frame for a group that was dropped, or was never read,
  is late or a lie, and would never be deleted.
- The cache holds a group whole or not at all, so that a hit never needs SQLite; its size is bounded in bytes.
  Groups with parts in chunks may take LIVE_SHARE times as many: reading one again means reading many chunks.
- Every record has a checksum: one that has changed on the disk is refused where it is read.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from controller.durability.damage import FAILURES, broken, chunk_checksum, damaged, is_whole, payload_checksum
from controller.durability.kept_sets import records
from controller.durability.payload_cache import Held, Newest, Part, Pool, ReportSeries
from protocol.errors import LocalError
from protocol.messages import BYTES_KINDS, ITEM_BYTES, Generated, Message, Piece, Score, Stretch
from protocol.wire.codec import pack

SCHEMA = """
CREATE TABLE IF NOT EXISTS payload (
    kind TEXT NOT NULL, group_id INTEGER NOT NULL, member INTEGER NOT NULL, attempt INTEGER NOT NULL,
    start INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, kind, member, attempt, start));
CREATE TABLE IF NOT EXISTS chunks (
    number INTEGER PRIMARY KEY, places BLOB NOT NULL, places_checksum INTEGER NOT NULL,
    tokens BLOB NOT NULL, logprobs BLOB NOT NULL, kept BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
LIVE_SHARE = 16  # 4 GiB by default: 260,000 responses in flight of 1,000 tokens each are half of that
FEW = 16  # up to so many responses of a report are looked up one by one among the reports that wait
MOST_WAITING_BYTES = 1 << 20  # of one worker's reports that wait in memory: about half a minute of them
MOST_WAITING = 1 << 12  # deltas in these reports
SETTLED_AT_ONCE = 2  # scored groups that one transaction writes: some milliseconds each
NOBODY = -1  # stands for the group of tokens that are not kept
Known = Mapping[tuple[int, int, int], int]
"""How many tokens of a response count, by group, member and attempt."""
_Column = tuple[int, ...]
_PLACES = msgspec.msgpack.Decoder(tuple[_Column, _Column, _Column, _Column, _Column, _Column])
"""Groups, members, attempts, starts and counts of the deltas of one report, and how many words their kept
sets have: none where sampling cut nothing off."""


class Payload:
    """The tables `payload` and `chunks` of an open database; the caller begins and ends the transactions."""

    def __init__(self, db: sqlite3.Connection, path: str, *, cache_bytes: int) -> None:
        self._db, self._path = db, path
        self._cache = Pool(cache_bytes)
        self._live = Pool(cache_bytes * LIVE_SHARE)  # of groups with parts in chunks
        self._finished: dict[int, None] = {}  # groups that were scored and still have parts in chunks
        self.reload()

    def reload(self) -> None:
        """Forget what memory holds, and read again which groups and chunks the database has."""
        self._cache.clear()
        self._live.clear()
        rows = self._db.execute("SELECT group_id FROM payload WHERE kind = 'row'")
        self._groups = {group for (group,) in rows}
        self._chunks: dict[int, list[ReportSeries]] = {}  # of each group
        self._newest = Newest()
        self._useless: list[int] = []  # chunks that nobody needs
        self._changed: list[int] = []  # chunks whose list of responses is damaged
        self._next = 1
        query = "SELECT number, places, places_checksum FROM chunks ORDER BY number"
        for number, places, checksum in self._db.execute(query):
            self._next = number + 1
            if is_whole(checksum, chunk_checksum, number, places):
                alone = ReportSeries.closed(number)
                self._note(alone, self._groups.intersection(_PLACES.decode(places)[0]))
                self._useless += [] if alone.needed else [number]
            else:
                self._changed.append(number)

    def put_row(self, group: int, row: bytes) -> None:
        """Keep the row (JSON) of a group, before all other payload of the group."""
        if group not in self._groups:
            self._groups.add(group)
            self._cache.add(group, Held())
        self._put(group, [Stretch("row", 0, 0, 0, row)])

    def put_frames(self, message: Message, frames: tuple[bytes, ...], source: str = "") -> None:
        """Keep the buffers that came with a message; their sizes were checked by `codec.check_frames`.

        `source`: the worker that sent it; its reports are mostly about the same responses.
        """
        if isinstance(message, Generated):
            self._put_progress(source, message, *frames)
            return
        for group, stretches in message.kept(frames):
            self._put(group, stretches, is_last_word=message.is_last_word)

    def fetch(self, message: Message) -> tuple[bytes, ...]:
        """Read the frames of an outgoing message. Raises: LocalError naming a piece that is not here."""
        if isinstance(message, Score) and message.group in self._chunks:
            self._finished[message.group] = None
        return tuple(b"".join(map(self.piece, pieces)) for pieces in message.outgoing_payload())

    def piece(self, piece: Piece) -> memoryview | bytes:
        """Read one piece. Raises: LocalError if it is not here; RunError if it has changed on the disk."""
        if piece.count == 0:
            return b""
        if piece.kind in BYTES_KINDS:
            return self._whole(piece)
        part = self._held(piece.group).part(piece)
        if piece.kind == "kept_words":  # as many as their codes say
            return bytes(part or b"")
        size = len(part or b"") if piece.count < 0 else ITEM_BYTES * piece.count
        if part is None or len(part) < size:
            self._look_for_damage()
            wanted = "all" if piece.count < 0 else f"{size} bytes"
            there = len(part or b"")
            raise LocalError(
                f"The store has {there} bytes of {piece}, expected {wanted}: the group was dropped, "
                "or the core counted tokens that no worker reported. This is a bug of the controller; please "
                "report it with run.db."
            )
        return memoryview(part)[:size]

    def drop(self, groups: Iterable[int]) -> None:
        """Delete all payload of these groups; frames that still come for them are not kept."""
        doomed = list(groups)
        self._db.executemany("DELETE FROM payload WHERE group_id = ?", [(group,) for group in doomed])
        for group in doomed:
            self._groups.discard(group)
            self._finished.pop(group, None)
            self._evict(group)
        self._release(doomed)

    def settle(self) -> None:
        """Write some of the groups that were scored as whole responses, so that their chunks can go."""
        for group in list(self._finished)[:SETTLED_AT_ONCE]:
            del self._finished[group]
            held = self._held(group)
            for (member, attempt), (tokens, _) in held.responses.items():
                self._write_whole(group, held, member, attempt, len(tokens) // ITEM_BYTES)
            self._release([group])

    def keep_only(self, groups: Iterable[int]) -> dict[int, bytes]:
        """Delete the payload of all other groups; returns the rows of these."""
        kept = set(groups)
        self.drop(self._groups - kept)
        self._delete(self._useless)
        self._useless = []
        query = "SELECT group_id, member, attempt, start, data, checksum FROM payload WHERE kind = 'row'"
        found: dict[int, bytes] = {}
        for group, member, attempt, start, data, checksum in self._db.execute(f"{query} ORDER BY group_id"):
            self._verify((group, "row", member, attempt, start), data, checksum)
            found[group] = data
        return found

    def keep_tokens(self, known: Known) -> None:
        """Cut every response to the tokens that the core has counted; write what is left as one record."""
        query = "DELETE FROM payload WHERE group_id = ? AND kind IN ('tokens', 'logprobs', 'kept_codes')"
        for group in sorted(self._groups):
            held = self._load(group)
            self._db.execute(query, (group,))
            for member, attempt in held.responses:
                self._write_whole(group, held, member, attempt, known.get((group, member, attempt), 0))
            self._release([group])
            self._evict(group)

    # -- progress ---------------------------------------------------------------------------------------

    def _put_progress(
        self, source: str, message: Generated, tokens: bytes, logprobs: bytes, *frames: bytes
    ) -> None:
        if not tokens:
            return
        places = (message.groups, message.members, message.attempts, message.starts, message.counts)
        columns, kept = (*places, message.kept_words), b"".join(frames)
        if self._groups.isdisjoint(columns[0]):
            return
        if not self._groups.issuperset(columns[0]):  # a group whose row comes later must not get these tokens
            known = tuple(group if group in self._groups else NOBODY for group in columns[0])
            columns = (known, *columns[1:])
        number, packed = self._next, pack(columns)
        self._next += 1
        self._db.execute(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, packed, chunk_checksum(number, packed), tokens, logprobs, kept,
             chunk_checksum(number, tokens, logprobs, kept)),
        )  # fmt: skip
        if kept:
            self._put_alone(source, number, columns, (tokens, logprobs, kept))
            return
        reports = self._newest.of(source)
        reports.numbers.append(number)
        if new := reports.take(columns[:5], tokens, logprobs):
            self._note(reports, self._groups.intersection(new))
        if reports.deltas > MOST_WAITING or reports.size_bytes > MOST_WAITING_BYTES:
            self._extend(self._newest.close(source))

    def _put_alone(
        self, source: str, number: int, columns: tuple[_Column, ...], data: tuple[bytes, bytes, bytes]
    ) -> None:
        """Hand a report to its responses at once, as it has kept sets."""
        self._note(ReportSeries.closed(number), self._groups.intersection(columns[0]))
        if len(columns[0]) > FEW:
            self._extend(self._newest.close(source))
        else:
            for response in zip(*columns[:3], strict=True):
                self._extend(self._newest.of_response(source, response))
        self._append(columns, *data)

    def _note(self, reports: ReportSeries, groups: Iterable[int]) -> None:
        """Note that these groups need the chunks of some reports."""
        for group in groups:
            if reports.is_open and not self._newest.note(group, reports):
                continue
            reports.needed += 1
            chunks = self._chunks.get(group)
            if chunks is None:
                chunks = self._chunks[group] = []
                self._cache.move(group, self._live)
            chunks.append(reports)

    def _extend(self, parts: Iterable[Part]) -> None:
        """Add tokens of responses to the groups that the cache holds."""
        for part in parts:
            if not self._live.extend(*part):
                self._evict(part[0][0])

    def _append(self, columns: tuple[_Column, ...], tokens: bytes, logprobs: bytes, kept: bytes) -> None:
        """Add the tokens of a report to the groups that the cache holds."""
        begin = 0
        groups, members, attempts, starts, counts, sizes = columns
        keys = zip(groups, members, attempts, strict=True)
        sets = records(counts, sizes, kept)
        for key, start, count, record in zip(keys, starts, counts, sets, strict=True):
            end = begin + ITEM_BYTES * count
            if not self._live.extend(key, start, tokens[begin:end], logprobs[begin:end], record):
                self._evict(key[0])
            begin = end

    def _chunk(self, number: int, group: int) -> Iterator[tuple[tuple[int, int], int, bytes, bytes, bytes]]:
        """Yield (member, attempt), start, tokens, logprobs and kept sets of each delta of a group in a chunk.

        Raises: RunError.
        """
        query = (
            "SELECT places, places_checksum, checksum, tokens, logprobs, kept FROM chunks WHERE number = ?"
        )
        row = self._db.execute(query, (number,)).fetchone()
        if row is None or not is_whole(row[1], chunk_checksum, number, row[0]):
            raise damaged(self._path, f"what record {number} of group {group} holds has changed")
        places, _, checksum, *data = row
        tokens, logprobs, kept = data
        begin, (*columns, sizes) = 0, _PLACES.decode(places)
        if not is_whole(checksum, chunk_checksum, number, *data):
            _, member, attempt, start, _ = next(row for row in zip(*columns, strict=True) if row[0] == group)
            what = f"the tokens of group {group}, member {member}, attempt {attempt}, from {start} on"
            raise damaged(self._path, f"{what}, has changed since it was written and must not be trained on")
        sets = records(columns[4], sizes, kept)
        for owner, member, attempt, start, count, record in zip(*columns, sets, strict=True):
            end = begin + ITEM_BYTES * count
            if owner == group and count:
                yield (member, attempt), start, tokens[begin:end], logprobs[begin:end], record
            begin = end

    def _release(self, groups: Iterable[int]) -> None:
        """Note that these groups no longer need their chunks, and delete chunks that no group needs."""
        for group in groups:
            self._live.move(group, self._cache)
            self._newest.forget(group)
            for reports in self._chunks.pop(group, ()):
                reports.known.discard(group)
                reports.needed -= 1
                if not reports.needed:
                    self._delete(reports.numbers)
                    reports.forget()

    def _delete(self, chunks: list[int]) -> None:
        self._db.executemany("DELETE FROM chunks WHERE number = ?", [(number,) for number in chunks])

    # -- records of their own ------------------------------------------------------------------------------

    def _put(self, group: int, stretches: list[Stretch], *, is_last_word: bool = False) -> None:
        if group not in self._groups:
            return
        if is_last_word:
            self._evict(group)
        for stretch in stretches:
            if stretch.kind == "state":
                self._forget_states(group, stretch)
            self._write(group, stretch, is_last_word=is_last_word)
        pool = self._live if group in self._live.groups else self._cache
        held = pool.groups.get(group)
        if held is not None:
            before = held.size_bytes
            for stretch in stretches:
                held.put(stretch)
            pool.grow(held.size_bytes - before, keep=group)

    def _write_whole(self, group: int, held: Held, member: int, attempt: int, count: int) -> None:
        """Write the first `count` tokens of a response, with logprobs and kept sets, in place of parts."""
        tokens, logprobs = (bytes(part[: ITEM_BYTES * count]) for part in held.responses[member, attempt])
        sets = held.kept_sets.get((member, attempt))
        whole = (
            Stretch("tokens", member, attempt, 0, tokens),
            Stretch("logprobs", member, attempt, 0, logprobs),
            Stretch("kept_codes", member, attempt, 0, sets.record(count) if sets else b""),
        )
        for stretch in whole:
            if stretch.data:
                self._write(group, stretch, is_last_word=True)

    def _write(self, group: int, stretch: Stretch, *, is_last_word: bool) -> None:
        kind, member, attempt, start, data = stretch
        checksum = payload_checksum((group, kind, member, attempt, start), data)
        self._db.execute(
            f"INSERT OR {'REPLACE' if is_last_word else 'IGNORE'} INTO payload VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kind, group, member, attempt, start, data, checksum),
        )

    def _forget_states(self, group: int, newer: Stretch) -> None:
        """Delete the states of an episode that this newer state replaces."""
        self._db.execute(
            "DELETE FROM payload WHERE group_id = ? AND kind = 'state' AND member = ? AND attempt <= ?",
            (group, newer.member, newer.attempt),
        )

    def _whole(self, piece: Piece) -> bytes:
        """Read bytes of an episode. Raises: LocalError if they are not here, RunError if they changed."""
        place = (piece.group, piece.kind, piece.member, piece.attempt, 0)
        query = (
            "SELECT data, checksum FROM payload "
            "WHERE group_id = ? AND kind = ? AND member = ? AND attempt = ? AND start = ?"
        )
        with self._in_words():
            found = self._db.execute(query, place).fetchone()
        if found is None:
            raise LocalError(f"The store has no {piece}. This is a bug of the controller; please report it.")
        self._verify(place, *found)
        return found[0]

    def _held(self, group: int) -> Held:
        self._extend(self._newest.gather(group))
        return self._live.groups.get(group) or self._cache.groups.get(group) or self._load(group)

    def _load(self, group: int) -> Held:
        held = Held()
        columns = "kind, member, attempt, start, data, checksum"
        query = f"SELECT {columns} FROM payload WHERE group_id = ? AND kind NOT IN ('state', 'talk') "
        query += "ORDER BY kind, member, attempt, start"
        with self._in_words():
            for kind, member, attempt, start, data, checksum in self._db.execute(query, (group,)):
                self._verify((group, kind, member, attempt, start), data, checksum)
                held.put(Stretch(kind, member, attempt, start, data))
            numbers = (number for reports in self._chunks.get(group, ()) for number in reports.numbers)
            found = [part for number in numbers for part in self._chunk(number, group)]
        for (member, attempt), start, tokens, logprobs, record in sorted(found, key=lambda part: part[1]):
            pair = held.response(member, attempt)
            if len(pair[0]) == ITEM_BYTES * start:
                pair[0].extend(tokens)
                pair[1].extend(logprobs)
                if record:
                    held.put_kept(member, attempt, start, record)
        if group in self._groups:
            (self._live if group in self._chunks else self._cache).add(group, held)
        return held

    def _verify(self, place: tuple[int, str, int, int, int], data: bytes, checksum: int) -> None:
        if not is_whole(checksum, payload_checksum, place, data):
            group, kind, member, attempt, start = place
            what = f"the {kind} of group {group}, member {member}, attempt {attempt}, from {start} on"
            raise damaged(self._path, f"{what}, has changed since it was written and must not be trained on")

    def _look_for_damage(self) -> None:
        """Blame the file for a missing piece, if it is damaged. Raises: RunError."""
        if self._changed:
            what = f"what record {self._changed[0]} of its responses holds has changed since it was written"
            raise damaged(self._path, what)
        with self._in_words():
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(self._path, f"SQLite says {found!r}")

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise broken(self._path, error) from error

    def _evict(self, group: int) -> None:
        self._live.take(group)
        self._cache.take(group)
