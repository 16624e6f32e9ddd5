"""Payload of groups in memory: what is held of one, and a pool of them that is bounded in bytes."""

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
        """All that is here of what a piece is of."""
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
        """Of one attempt, to be filled."""
        pair = self.responses.get((member, attempt))
        if pair is None:
            pair = self.responses[member, attempt] = (bytearray(), bytearray())
        return pair

    def put(self, stretch: Stretch) -> None:
        """Take what stands alone."""
        if stretch.kind == "row":
            self.row = self.row or stretch.data
        elif stretch.kind == "prompt":
            self.prompt = self.prompt or stretch.data
        elif stretch.kind in BYTES_KINDS:
            pass  # needed once, if at all: read from the file then
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
        """Of everything."""
        fixed = len(self.row or b"") + len(self.prompt or b"")
        fixed += sum(sets.size_bytes for sets in self.kept_sets.values())
        return fixed + sum(len(tokens) + len(logprobs) for tokens, logprobs in self.responses.values())


class Pool:
    """Groups that are in memory, the oldest first; when they are too large, the oldest go."""

    def __init__(self, most_bytes: int) -> None:
        self.groups: dict[int, Held] = {}
        self.size_bytes = 0
        self._open: dict[tuple[int, int, int], tuple[bytearray, bytearray]] = {}  # of groups that are here
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
        """Give up a group, if it is here."""
        held = self.groups.pop(group, None)
        if held is not None:
            self.size_bytes -= held.size_bytes
            for member, attempt in held.responses:
                self._open.pop((group, member, attempt), None)
        return held

    def response(self, key: tuple[int, int, int]) -> tuple[bytearray, bytearray] | None:
        """Tokens and logprobs of (group, member, attempt), to be filled; None if its group is not here."""
        pair = self._open.get(key)
        if pair is None and (held := self.groups.get(key[0])) is not None:
            pair = self._open[key] = held.response(*key[1:])
        return pair

    def move(self, group: int, other: "Pool") -> None:
        """Hand a group to another pool, if it is here."""
        held = self.take(group)
        if held is not None:
            other.add(group, held)

    def grow(self, size_bytes: int, *, keep: int) -> None:
        """Its groups have become larger, one of which is needed."""
        self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes and len(self.groups) > 1:
            self.take(next(group for group in self.groups if group != keep))
