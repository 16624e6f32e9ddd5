"""Sources that are nowhere, say too much, or never end: a pull is answered, and the agent lives."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from test_weights_channel import CHUNKS, Hosts, Source, is_same

from protocol.errors import WeightsError
from protocol.messages import MAX_TEXT_CHARS
from workers.weights import fetch, manifest
from workers.weights.channel import CHUNK, GONE, HEADER, SourceConnection, Word, decode
from workers.weights.fetch import Fetch
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VersionStore, map_file

LIMIT_S = 300
LIMIT_MS = 1000 * LIMIT_S
NOWHERE = ("bogus", "tcp://", "tcp://host", "")


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    async with asyncio.timeout(LIMIT_S):
        for neighbour in hosts.all:
            await neighbour.close()
    hosts.store.close()


async def test_sources_that_are_nowhere_are_passed_over_and_the_agent_ends_when_it_is_told(hosts):
    published = hosts.publish(0)
    good = await hosts.add("trainer").start()
    reader = hosts.add("node")
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(WeightsError, match="could not be pulled from any source"):
            await reader.fetch(0, published.digest, NOWHERE)
        fetched = await reader.fetch(0, published.digest, ["bogus", "tcp://", good])
    assert is_same(published, fetched.location)


def test_a_socket_that_cannot_connect_is_closed_again():
    with zmq.Context() as context:  # which waits for every socket that is open
        for endpoint in NOWHERE:
            with pytest.raises(WeightsError, match="cannot be reached"):
                SourceConnection(context, endpoint, window=4, key=None)


@pytest.fixture
def source(hosts):
    made = Source(hosts.publish(0))
    yield made
    made.close()


@pytest.fixture
def one(source: Source, tmp_path: Path) -> Iterator[Fetch]:
    """A pull from it."""
    context, store = zmq.Context(), VersionStore(tmp_path / "reader")
    digest = manifest.digest_of(source.content)
    made = Fetch(lambda size: store, 0, digest, [source.endpoint], context=context, window=4)
    yield made
    made.close()
    store.close()
    context.destroy(linger=0)


def heard(one: Fetch) -> None:
    assert one.sockets[0].poll(LIMIT_MS)
    one.hear()


def test_words_that_bring_nothing_are_no_sign_of_life(source, one, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert source.socket.poll(LIMIT_MS)
    reader, _ = source.socket.recv_multipart()
    source.socket.send_multipart([reader, Word(HEADER, 0).encode(), source.content[: source.begin]])
    heard(one)
    due = one.deadline_s
    for junk in (Word(HEADER, 0), Word(CHUNK, 0, CHUNKS + 7)):  # said already, and never asked for
        clock[0] += 1
        source.socket.send_multipart([reader, junk.encode(), b"x"])
        heard(one)
    assert one.deadline_s == due
    chunk = decode(source.socket.recv_multipart()[1])
    assert chunk is not None
    start = source.begin + chunk.chunk * CHUNK_BYTES
    data = source.content[start : start + CHUNK_BYTES]
    source.socket.send_multipart([reader, Word(CHUNK, 0, chunk.chunk).encode(), data])
    heard(one)
    assert one.deadline_s == due + 2


def test_a_farewell_without_end_is_cut_to_what_the_controller_takes(source, one):
    assert source.socket.poll(LIMIT_MS)
    reader, _ = source.socket.recv_multipart()
    source.socket.send_multipart([reader, Word(GONE, 0).encode(), b"x" * 500_000])
    heard(one)
    assert one.failure is not None
    assert len(one.failure) < MAX_TEXT_CHARS


def test_what_is_published_at_a_place_that_never_ends_is_no_version(tmp_path):
    os.mkfifo(tmp_path / "v1.safetensors")
    with pytest.raises(WeightsError, match="is no file"):
        map_file(tmp_path / "v1.safetensors")
