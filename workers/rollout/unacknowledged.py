"""Buffer of unacknowledged reports, kept while the controller is down.

Invariants: messages stay in the order in which they were sent, and none is dropped before a controller has
answered for it; released messages hold only what the run still wants, each token once, from the token that
the controller asks for. Pure: simulated workers use it, too.
"""

from collections.abc import Iterable, Iterator, Mapping

from protocol.errors import RemoteError
from protocol.ids import PeerId
from protocol.messages import ITEM_BYTES, Delta, Generated, GenerationFailed, Holding, Keep, Message
from protocol.wire.codec import Packet, decode, encode, pack, unpack

Key = tuple[int, int, int]
"""(group, member, attempt)."""
Frames = tuple[bytes, ...]


class Unacknowledged:
    """Reports from the moment that a link is cut until the next controller says which of them it wants."""

    def __init__(self) -> None:
        self._formers: list[PeerId] = []
        self._words: list[tuple[Message, Frames]] = []

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple["Unacknowledged", int]:
        """The inverse of `to_bytes`. Raises: RemoteError."""
        unacknowledged = cls()
        try:
            policy_version, formers, words = unpack(data)
            unacknowledged._formers += formers
            packets = [decode(list(frames)) for frames in words]
        except (TypeError, ValueError) as error:
            raise RemoteError(f"These are no words of a rollout worker: {error}.") from None
        unacknowledged._words += [(packet.message, packet.frames) for packet in packets]
        return unacknowledged, policy_version

    def to_bytes(self, policy_version: int) -> bytes:
        """The reports as bytes for another process, with the policy version that this worker samples from."""
        words = [encode(Packet(0, 0, message, frames)) for message, frames in self._words]
        return pack((policy_version, self._formers, words))

    @property
    def is_pending(self) -> bool:
        """Whether a controller has still to say what it wants."""
        return bool(self._formers)

    def cut(self, peer: PeerId, unacknowledged: Iterable[tuple[Message, Frames]]) -> None:
        """Note that the link on which this worker was `peer` is cut, and keep its unacknowledged messages."""
        self._formers.append(peer)
        for message, frames in unacknowledged:
            self.add(message, frames)

    def add(self, message: Message, frames: Frames) -> None:
        """Keep a message, if it reports generated tokens or a failed generation."""
        if isinstance(message, Generated | GenerationFailed):
            self._words.append((message, frames))

    def holding(self, policy_version: int, running: Mapping[Key, int]) -> Holding:
        """The report for the next controller; `running`: attempts in progress, with their reported tokens."""
        starts: dict[Key, int] = {}
        for message, _ in self._words:
            if isinstance(message, Generated):
                for key, start in zip(message.keys, message.starts, strict=True):
                    starts.setdefault(key, start)
            elif isinstance(message, GenerationFailed):
                starts.setdefault((message.group, message.member, message.attempt), 0)
        starts = {**running, **starts}
        attempts = tuple((*key, start) for key, start in starts.items())
        return Holding(tuple(self._formers), policy_version, attempts)

    def release(self, keep: Keep) -> list[tuple[Message, Frames]]:
        """The messages that this controller wants; the others are dropped."""
        wanted = {(group, member, attempt): start for group, member, attempt, start in keep.attempts}
        released: list[tuple[Message, Frames]] = []
        for message, frames in self._words:
            if isinstance(message, Generated):
                chosen = _cut_out(message, frames, wanted)
                released += [chosen] if chosen[0].groups else []
            elif isinstance(message, GenerationFailed):
                is_wanted = (message.group, message.member, message.attempt) in wanted
                released += [(message, frames)] if is_wanted else []
        self._formers, self._words = [], []
        return released


def _cut_out(message: Generated, frames: Frames, wanted: Mapping[Key, int]) -> tuple[Generated, Frames]:
    """The deltas of wanted attempts from the requested token on, and their part of the buffers."""
    chosen: list[tuple[Delta, int]] = []
    parts: list[list[bytes]] = [[] for _ in frames]
    for delta, words, places in _placed(message, len(frames)):
        if delta.start >= wanted.get(delta[:3], delta.start + 1):
            chosen.append((delta, words))
            for part, frame, place in zip(parts, frames, places, strict=True):
                part.append(frame[place])
    kept_words = tuple(words for _, words in chosen) if message.kept_words else ()
    return Generated.of((delta for delta, _ in chosen), kept_words), tuple(map(b"".join, parts))


def _placed(message: Generated, frames: int) -> Iterator[tuple[Delta, int, list[slice]]]:
    """Each delta, the words of its kept sets, and its slice of each buffer."""
    begin = first = 0
    for delta, words in zip(message.deltas, message.kept_words or (0,) * len(message.deltas), strict=True):
        end, last = begin + ITEM_BYTES * delta.count, first + ITEM_BYTES * words
        yield delta, words, [*[slice(begin, end)] * 3, slice(first, last)][:frames]
        begin, first = end, last
