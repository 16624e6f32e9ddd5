"""A source that is too slow is left for a faster one, and no other is; by a clock that the test moves."""

import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from workers.weights import fetch, manifest
from workers.weights.channel import CHUNK, HEADER, Word, decode, serving_socket
from workers.weights.fetch import LEAST_BYTES, PACE_S, PATIENCE_S, REST_S, SLOWEST, Fetch
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VersionStore
from workers.weights.version_file import VersionFile

CHUNKS, WINDOW, LIMIT_MS = 24, 4, 300_000


class Source:
    """One that gives a chunk each so many seconds."""

    def __init__(self, context: zmq.Context, version: VersionFile, every_s: float) -> None:
        self.every_s, self.given, self.due_s = every_s, [], 0.0
        self._version, self._asked = version, []
        self.socket = serving_socket(context, "tcp://127.0.0.1:*", window=2 * CHUNKS, key=None)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def take_word(self) -> None:
        assert self.socket.poll(LIMIT_MS)
        reader, frame = self.socket.recv_multipart()
        word = decode(frame)
        if word.kind == HEADER:
            self.socket.send_multipart([reader, frame, bytes(self._version.header)])
        else:
            self._asked.append((reader, word.chunk))

    def give(self, now: float) -> int:
        """The next chunk that was asked for over the connection that is open."""
        reader, chunk = self._asked.pop(0)
        self.given.append(chunk)
        self.due_s = now + self.every_s
        word = Word(CHUNK, 1, chunk)
        self.socket.send_multipart([reader, word.encode(), bytes(self._version.chunk(chunk))])
        return chunk


class Cable:
    """The way to a source, which carries bytes when it is told to."""

    def __init__(self, source: Source) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._far = socket.create_connection(("127.0.0.1", int(source.endpoint.rpartition(":")[2])))
        self._near: socket.socket | None = None
        source.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def carry(self, most: int = 1 << 30) -> int:
        """Carry what is there, of what the source says so many bytes at most; returns how many of those."""
        if self._near is None:
            self._near, _ = self._listener.accept()
        there, _, _ = select.select([self._near, self._far], [], [], 0.01)
        if self._near in there:
            self._far.sendall(self._near.recv(1 << 16))
        said = self._far.recv(min(most, 1 << 16)) if self._far in there else b""
        self._near.sendall(said)
        return len(said)

    def close(self) -> None:
        for end in (self._listener, self._far, self._near):
            if end is not None:
                end.close()


class Pull:
    """The pull of one version from such sources, a step at a time."""

    def __init__(
        self, folder: Path, every_s: list[float], monkeypatch: pytest.MonkeyPatch, *, by_cable: bool = False
    ) -> None:
        self.now, self._context = 1000.0, zmq.Context()
        monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._theirs, self._ours = VersionStore(folder / "theirs"), VersionStore(folder / "ours")
        segment = self._theirs.begin(manifest.lay_out(1, {"w": ("F32", (CHUNKS * CHUNK_BYTES // 4,))}))
        segment._data[:] = os.urandom(len(segment._data))
        self._theirs.written(segment)
        published = self._theirs.seal(segment)
        version = VersionFile.open(self._theirs.path(1))
        self.sources = [Source(self._context, version, each) for each in every_s]
        self.cables = [Cable(source) for source in self.sources if by_cable]
        names = [source.endpoint for source in self.sources]
        self.fetch = Fetch(
            lambda size: self._ours, 1, published.digest, names, context=self._context, window=WINDOW
        )
        self.told: list[int] = []  # places of the sources, in turn
        if not by_cable:
            self._connect()

    def _connect(self) -> None:
        """Serve the words that a new connection begins with."""
        self._connection = self.fetch.connection
        source = next(one for one in self.sources if one.endpoint == self._connection.endpoint)
        self.told.append(self.sources.index(source))
        source.due_s, source._asked = self.now + source.every_s, []
        if self.fetch.header is None:
            source.take_word()
            self._hear()
        for _ in range(len(self.fetch._asked)):
            source.take_word()

    def _hear(self) -> list[int]:
        assert self.fetch.connection.socket.poll(LIMIT_MS)
        return self.fetch.hear()

    def run(self) -> None:
        while not self.fetch.is_over:
            source = self.sources[self.told[-1]]
            due_s = source.due_s
            if self.fetch.deadline_s < due_s:
                self.now = self.fetch.deadline_s
                self.fetch.hurry()
                if self.fetch.connection is not self._connection:
                    self._connect()
                continue
            self.now = due_s
            before = len(self.fetch._todo)
            chunk = source.give(self.now)
            assert self._hear() == [chunk]
            for _ in range(before - len(self.fetch._todo)):
                source.take_word()

    def close(self) -> None:
        self.fetch.close()
        for cable in self.cables:
            cable.close()
        for source in self.sources:
            source.socket.close(0)
        self._context.destroy(linger=0)
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    made: list[Pull] = []

    def make(*every_s: float, by_cable: bool = False) -> Pull:
        made.append(Pull(tmp_path, list(every_s), monkeypatch, by_cable=by_cable))
        return made[0]

    yield make
    made[0].close()


def test_a_source_that_drips_is_left_for_the_next(pull) -> None:
    made = pull(9.0, 0.1)
    made.run()
    relay, trainer = (source.given for source in made.sources)
    assert made.fetch.published is not None
    assert made.told == [0, 1]
    assert len(relay) == PACE_S // 9
    assert sorted([*relay, *trainer]) == list(range(CHUNKS))  # nothing twice
    assert made.fetch.received_bytes == CHUNKS * CHUNK_BYTES


def test_the_last_source_is_not_left_however_slow_it_is(pull) -> None:
    made = pull(9.0)
    made.run()
    assert made.fetch.published is not None
    assert made.told == [0]


def test_of_two_slow_ones_the_faster_is_come_back_to(pull) -> None:
    made = pull(5.0, 9.9)
    made.sources[0].every_s = 4.2  # 14 a minute, and 6 of the other
    made.run()
    assert made.fetch.published is not None
    assert made.told == [0, 1, 0]


def test_two_that_are_as_slow_are_not_changed_for_ever(pull) -> None:
    made = pull(9.0, 8.0)
    made.run()
    assert made.fetch.published is not None
    assert made.told == [0, 1]


def test_one_that_keeps_pace_is_not_left(pull) -> None:
    made = pull(PACE_S / SLOWEST, 0.1)
    made.run()
    assert made.fetch.published is not None
    assert made.told == [0]


def test_a_large_version_wants_a_higher_pace(pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of 16 GB, of which 15 chunks a minute would take 18 hours."""
    monkeypatch.setattr(fetch, "REST_S", REST_S * CHUNKS / (16 << 10))
    made = pull(PACE_S / SLOWEST, 0.1)
    made.run()
    assert made.fetch.published is not None
    assert made.told == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="no other system counts the bytes that came")
def test_one_whose_chunk_takes_longer_than_its_patience_is_left_only_when_no_more_of_it_comes(pull) -> None:
    """Each time, a little more of it: as 64 kB/s bring a chunk in 16 s."""
    made = pull(0.0, by_cable=True)
    (source,), (cable,), one = made.sources, made.cables, made.fetch
    while not source._asked:
        cable.carry()
        one.hear()
        one.notice()
        if source.socket.poll(0):
            source.take_word()
    source.give(made.now)
    first = one.connection
    for _ in range(3):
        left, before = 2 * LEAST_BYTES, first.arrived_bytes()
        while left:
            left -= cable.carry(left)
        while first.arrived_bytes() < before + 2 * LEAST_BYTES:
            pass
        made.now += PATIENCE_S
        one.hurry()
        assert one.connection is first, one.why
    made.now += PATIENCE_S
    one.hurry()
    assert one.connection is not first
