"""The pull of one version to this host, chunk by chunk, from the first source that has it.

Invariants: a chunk that was received and verified is never requested again, whichever source is next; a chunk
whose checksum is not the published one is counted and requested elsewhere; at most `window` chunks are
requested at a time; the version appears when it is whole, and not at all after a failure; a delta counts as
the chunk that it makes, verified by the same checksum, and a wrong one ends the use of deltas for this
version; a source that is too slow is left for one that is not known to be as slow, once a minute at most.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Any

import zmq

from protocol.errors import BeingWritten, ConfigError, RunError, StaleFlowError, WeightsError
from protocol.wire.security import ServerKey
from workers.weights import manifest
from workers.weights.channel import (
    AT_ONCE,
    CHUNK,
    DELTA,
    GONE,
    HEADER,
    MAX_TEXT,
    WRONG_KEY,
    SourceConnection,
    Word,
    decode,
)
from workers.weights.deltas import DeltaCache, Pair
from workers.weights.deltas import decode as apply_delta
from workers.weights.store import FileSegment, PublishedFile, VersionStore
from workers.weights.version_file import VersionFile

PATIENCE_S = 10.0  # without a chunk, or LEAST_BYTES of one, from a connected source
LEAST_BYTES = 16_384  # in that time: behind a slow cable one chunk takes longer
PACE_S = 60.0  # over which a source's pace is measured
SLOWEST = 15  # chunks in that time: 2 Mbit/s
REST_S = 900.0  # for the rest of a version: half of what the controller gives a pull by default
ROUNDS = 3  # through all sources in vain: one may have been starting, or a cable loose


class Fetch:
    """The pull of one version. The owner polls `sockets`, and calls `hear`, `notice` and `hurry`."""

    def __init__(
        self,
        store_for: Callable[[int], VersionStore],
        policy_version: int,
        digest: str,
        sources: Sequence[str],
        *,
        context: zmq.Context[Any],
        window: int,
        key: ServerKey | None = None,
        base: VersionFile | None = None,
        deltas: DeltaCache | None = None,
        kept: SourceConnection | None = None,
    ) -> None:
        """`store_for`: where a version of so many bytes is kept; asked once the header is here.

        `base`: an older version here, for deltas; `deltas` caches received ones; `kept`: the
        connection of the pull before, which is closed if the first source is another one.
        """
        self.policy_version = policy_version
        self.refused = 0  # chunks and headers with a wrong checksum
        self.received_bytes = 0
        self.failure: str | None = None
        """Why the pull has failed, in a sentence; None if it has not."""
        self.why = ""
        """The reason of the last source alone."""
        self.is_unreachable = False
        """Whether a later try may succeed: no source answered, or another process of this host pulls it."""
        self.has_no_room = False
        """Whether the pull has failed because this host cannot keep the version."""
        self.published: PublishedFile | None = None
        """The version, if the pull has succeeded."""
        self.header: bytes | None = None
        self._store_for, self._digest = store_for, digest
        self._store: VersionStore | None = None  # once the header is here
        self._context, self._window, self._key = context, window, key
        self._sources, self._left = tuple(sources), deque(ROUNDS * tuple(sources))
        self._source, self._has_brought = "", False  # it, and whether it has sent a requested chunk
        self.connection: SourceConnection | None = None
        """To the source; still open after a successful pull, for the next one."""
        self._kept, self._is_reused = kept, False
        self._segment: FileSegment | None = None
        self._base, self._deltas = base, deltas
        self._digests: list[str] = []
        self._todo, self._asked = dict[int, None](), dict[int, None]()  # chunks that are not here, in order
        self._heard_s = 0.0  # when the source last sent a requested chunk, or much of one
        self._arrived = 0  # bytes that had come from it by then
        self._paced_s, self._came = 0.0, 0  # start of the pace measurement, and the chunks since
        self._paces: dict[str, int] = {}  # chunks in PACE_S, by source, as of the last look
        self._next("no source was named")

    @property
    def is_over(self) -> bool:
        """Whether the pull has succeeded or failed."""
        return self.failure is not None or self.published is not None

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """The sockets to poll."""
        return self.connection.sockets if self.connection is not None else []

    @property
    def deadline_s(self) -> float:
        """When to call `hurry`, by the monotonic clock."""
        return min(self._heard_s + PATIENCE_S, self._paced_s + PACE_S)

    def chunk(self, index: int) -> memoryview | None:
        """A chunk that is here already, for serving; None if it is not, or beyond the end."""
        if self._segment is None or index in self._todo or index in self._asked:
            return None
        return self._segment.chunk(index) or None

    def hear(self) -> list[int]:
        """Read messages of the source; returns the chunks that are here now."""
        came: list[int] = []
        for _ in range(AT_ONCE):  # each chunk that comes requests the next: readers wait meanwhile
            if self.connection is None or self.is_over:
                break
            try:
                frames = self.connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._is_reused = False
            came += self._take([frame.buffer for frame in frames])
        return came

    def notice(self) -> None:
        """Go on with the next source if the connection to this one is lost, or was never made."""
        if self.connection is None or self.is_over or (how := self.connection.lost()) is None:
            return
        if self._has_brought:  # a long pull survives many losses, as long as chunks come between them
            at = self._sources.index(self._source)
            self._left = deque(self._sources[at + 1 :] + (ROUNDS - 1) * self._sources)
        if self._is_reused:  # it was lost between pulls: the source may be there all the same
            self._left.appendleft(self._source)
        self._next(f"{self._source}: {how}", is_lost=how != WRONG_KEY)

    def hurry(self) -> None:
        """Go on with another source if this one is silent for too long, or too slow."""
        now = time.monotonic()
        if self.is_over:
            return
        if now >= self._heard_s + PATIENCE_S and not self._is_bringing(now):
            self._next(f"{self._source} was silent for {PATIENCE_S:g} s", is_lost=True)
        elif now >= self._paced_s + PACE_S:
            self._look_at_pace(now)

    def _is_bringing(self, now: float) -> bool:
        """Whether the source has sent LEAST_BYTES since it was last heard; then it is heard now."""
        assert self.connection is not None
        if self.connection.arrived_bytes() < self._arrived + LEAST_BYTES:
            return False
        self._note_sign_of_life(now)
        return True

    def _note_sign_of_life(self, now: float) -> None:
        assert self.connection is not None
        self._heard_s, self._arrived = now, self.connection.arrived_bytes()

    def _look_at_pace(self, now: float) -> None:
        """Leave a source that is too slow, if another was not tried, or was twice as fast."""
        came, left = self._came, self._came + len(self._todo) + len(self._asked)
        self._paces[self._source] = came
        self._paced_s, self._came = now, 0
        if came >= max(SLOWEST, left * PACE_S / REST_S):
            return
        others = [source for source in dict.fromkeys((*self._left, *self._paces)) if source != self._source]
        fastest = max(others, key=lambda source: self._paces.get(source, inf), default=None)
        if fastest is not None and self._paces.get(fastest, inf) > 2 * came:
            self._left.appendleft(fastest)
            self._next(f"{self._source} brought {came} chunks in {PACE_S:g} s")

    def close(self) -> None:
        """Give up a pull that is not finished, and close its connections."""
        self._disconnect()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._base = None
        if self._store is not None and self._segment is not None and self.published is None:
            self._store.discard(self._segment)
            self._segment = None

    def _take(self, frames: list[memoryview]) -> list[int]:
        word = decode(bytes(frames[0])) if len(frames) == 2 else None
        if word is None or word.policy_version != self.policy_version:
            self._next(f"{self._source} does not speak as a source does")
        elif word.kind == GONE:
            self._left = deque(endpoint for endpoint in self._left if endpoint != self._source)
            self._paces.pop(self._source, None)
            self._next(f"{self._source}: {bytes(frames[1][:MAX_TEXT]).decode(errors='replace')}")
        elif word.kind == HEADER and self.header is None:
            self._begin(bytes(frames[1]))
        elif word.kind == CHUNK and word.chunk in self._asked:
            return self._keep(word.chunk, frames[1], frames[1])
        elif word.kind == DELTA and word.chunk in self._asked:
            return self._apply(word, frames[1])
        return []

    def _begin(self, header: bytes) -> None:
        try:
            layout, self._digests = manifest.read_header(header, self._digest, source=self._source)
            self._store = self._store_for(layout.file_bytes)
            self._segment = self._store.begin(layout)
        except WeightsError as error:
            self.refused += 1
            self._next(str(error))
            return
        except (RunError, ConfigError) as error:
            self._cannot_keep(error)
            return
        self.header = header
        self._note_sign_of_life(time.monotonic())
        if self._base is not None and self._base.layout.entries != layout.entries:
            self._base = None  # of another model
        self._todo = dict.fromkeys(range(len(self._digests)))
        self._ask()
        self._finish_if_whole()

    def _apply(self, word: Word, delta: memoryview) -> list[int]:
        """Make a chunk from a delta and the base's chunk."""
        if self._base is None or word.base != self._base.policy_version:
            self._next(f"{self._source} tells chunk {word.chunk} by a version that was not named")
            return []
        try:
            chunk = apply_delta(delta, self._base.chunk(word.chunk))
        except WeightsError as error:
            self._refuse_delta(word.chunk, str(error))
            return []
        pair, came = Pair(self.policy_version, word.base), self._keep(word.chunk, chunk, delta)
        if came and self._deltas is not None:
            self._deltas.keep(pair, word.chunk, bytes(delta))
        return came

    def _refuse_delta(self, index: int, why: str) -> None:
        """Request the rest of the version without deltas: the base may be wrong."""
        self._base = None
        self.refused += 1
        self._next(f"chunk {index} from {self._source}: {why}")

    def _keep(self, index: int, data: memoryview, received: memoryview) -> list[int]:
        """Store a chunk. `received`: the bytes as they came, which is `data` itself or a delta."""
        assert self._segment is not None
        if self._segment.take(index, data) != self._digests[index]:
            self._base = None if received is not data else self._base
            self.refused += 1
            self._next(f"chunk {index} from {self._source} has another checksum than was published")
            return []
        del self._asked[index]
        self._note_sign_of_life(time.monotonic())
        self._has_brought, self._came = True, self._came + 1
        self.received_bytes += len(received)
        self._ask()
        self._finish_if_whole()
        return [index]

    def _finish_if_whole(self) -> None:
        if not self._todo and not self._asked and self._segment is not None:
            assert self._store is not None
            self._base = None
            try:
                self.published = self._store.seal(self._segment, self.header)
            except RunError as error:
                self._cannot_keep(error)

    def _ask(self) -> None:
        """Request chunks until the window is full."""
        assert self.connection is not None
        for index in list(islice(self._todo, self._window - len(self._asked))):
            self.connection.socket.send(self._request(index).encode())
            del self._todo[index]
            self._asked[index] = None

    def _request(self, index: int) -> Word:
        if self._base is None:
            return Word(CHUNK, self.policy_version, index)
        return Word(DELTA, self.policy_version, index, self._base.policy_version)

    def _next(self, why: str, *, is_lost: bool = False) -> None:
        """Go on with the next source, keeping the chunks that are here. `is_lost`: the network took this."""
        self._disconnect()
        self._todo = dict.fromkeys(sorted((*self._asked, *self._todo)))
        self._asked = {}
        self._has_brought = False
        while self.connection is None:
            if not self._left:
                self.is_unreachable = is_lost and not self.refused
                self._fail(why)
                return
            self._source = self._left.popleft()
            try:
                self.connection = self._connect(self._source)
            except WeightsError as error:
                why, is_lost = str(error), False
        self._paced_s, self._came = time.monotonic(), 0
        self._note_sign_of_life(self._paced_s)
        if self.header is None:
            self.connection.socket.send(Word(HEADER, self.policy_version).encode())
        else:
            self._ask()

    def _connect(self, endpoint: str) -> SourceConnection:
        """A connection to a source, which may be open since the pull before."""
        kept, self._kept = self._kept, None
        self._is_reused = kept is not None and kept.endpoint == endpoint and kept.lost() is None
        if kept is not None and self._is_reused:
            return kept
        if kept is not None:
            kept.close()
        return SourceConnection(self._context, endpoint, window=self._window, key=self._key)

    def _fail(self, why: str) -> None:
        self.why = why
        self.failure = (
            f"Version {self.policy_version} could not be pulled from any source, the last because: {why}. "
            "The instance goes on with what it has, and is told the newest version next."
        )
        self.close()

    def _cannot_keep(self, error: StaleFlowError) -> None:
        self.is_unreachable = isinstance(error, BeingWritten)  # in a while it can be read here
        self.has_no_room = not self.is_unreachable
        self.why = self.failure = str(error)
        self.close()

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None
