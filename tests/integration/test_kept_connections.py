"""One pull after another from the same source goes over the same connection, as long as there is one."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from test_weights_channel import Hosts, Source, hosts, is_same, source  # noqa: F401 - fixtures

from workers.weights import manifest
from workers.weights.channel import GONE, Word
from workers.weights.exchange_process import WeightsExchangeProcess
from workers.weights.fetch import Fetch
from workers.weights.store import PublishedFile, VersionStore

pytest.importorskip("torch")
NOBODY = "tcp://127.0.0.1:1"


async def pull(source: Source, reader: WeightsExchangeProcess, published: PublishedFile) -> set[bytes]:  # noqa: F811
    """Have a version pulled; the names of the connections that it came over."""
    source.show(published)
    version = int(Path(published.location).stem.removeprefix("v"))
    fetching = asyncio.ensure_future(reader.fetch(version, published.digest, [source.endpoint]))
    while not fetching.done():
        await asyncio.to_thread(source.answer, wait_ms=50)
    assert is_same(published, (await fetching).location)
    return set(source.names)


async def test_a_source_keeps_its_connection_unless_it_speaks_unasked(hosts: Hosts, source: Source):  # noqa: F811
    reader = hosts.add("reader", deltas=False)
    (first,) = await pull(source, reader, hosts.publish(0))
    assert await pull(source, reader, hosts.publish(1)) == {first}
    source.socket.send_multipart([first, Word(GONE, 2).encode(), b"nobody has asked"])
    with pytest.raises(zmq.ZMQError, match="Host unreachable"):
        speak_until_it_hangs_up(source, first)
    assert await pull(source, reader, hosts.publish(3)) != {first}


def speak_until_it_hangs_up(source: Source, name: bytes) -> None:  # noqa: F811
    source.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    while True:
        source.socket.send_multipart([name, b"?", b"?"])


@pytest.fixture
def begin(hosts: Hosts, source: Source, tmp_path: Path) -> Iterator[Callable[..., Fetch]]:  # noqa: F811
    """Begins a pull from the source, or from nobody where it is not."""
    context, store, digest = zmq.Context(), VersionStore(tmp_path / "own"), manifest.digest_of(source.content)

    def made(*, kept=None, sources=(source.endpoint, NOBODY)) -> Fetch:
        return Fetch(lambda size: store, 0, digest, sources, context=context, window=4, kept=kept)

    yield made
    store.close()
    context.destroy(linger=0)


def finish(one: Fetch, source: Source) -> None:  # noqa: F811
    while not one.is_over:
        source.answer(wait_ms=10)
        one.hear()
        one.notice()
    assert one.published is not None


def test_a_connection_that_ends_as_it_is_used_again_costs_no_source(begin, source):  # noqa: F811
    first = begin()
    finish(first, source)
    second = begin(kept=first.connection)
    assert second.connection is first.connection
    source.socket.close(0)
    source.socket = source.context.socket(zmq.ROUTER)
    source.socket.setsockopt(zmq.LINGER, 0)
    assert second.sockets[1].poll(60_000)
    source.socket.bind(source.endpoint)
    second.notice()
    assert second.connection is not None
    assert second.connection.endpoint == source.endpoint
    finish(second, source)
    second.connection.close()


def test_a_connection_with_another_source_is_closed(begin, source):  # noqa: F811
    first = begin()
    finish(first, source)
    assert first.connection is not None
    second = begin(kept=first.connection, sources=[NOBODY])
    assert first.connection.socket.closed
    assert not source.socket.poll(0)
    second.close()
    third = begin(kept=None, sources=[])
    assert third.failure is not None
