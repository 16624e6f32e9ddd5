"""Links that are cut while words are under way, or slow: nothing is lost or doubled, and all are heard."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT, socket

import psutil
import pytest
import zmq
from test_transport import LIMIT_S, Ends
from test_weights_channel import Hosts, is_same

from protocol.messages import Beat, PromptsEncoded, Ready, Retire, Train
from protocol.wire.connection import Connection
from protocol.wire.dead_links import SILENCE_MS
from workers.weights.channel import FULL_MS, SourceConnection, serving_socket

ROOT = Path(__file__).resolve().parents[2]
HANDSHAKE_BYTES = 200  # somewhat fewer than that of ZeroMQ has, in both directions
PIECE = 4096  # bytes that a proxy passes on at a time


class Proxy:
    """A tcp relay whose connections can be cut, with whatever is under way in them."""

    def __init__(self, target: str) -> None:
        self.pause_s = 0.0  # after each PIECE bytes, in both directions
        self._host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._port = int(port)
        self.bytes = 0  # that it has passed on
        self.links = 0  # that were ever made
        self._moved = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def passed(self, count: int) -> None:
        """Wait until so many bytes were passed on."""
        async with asyncio.timeout(LIMIT_S):
            while self.bytes < count:
                self._moved.clear()
                await self._moved.wait()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, back}
        self.links += 1
        for source, sink in ((reader, back), (there, writer)):
            relay = asyncio.create_task(self._relay(source, sink))
            self._relays.add(relay)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(PIECE):
                sink.write(data)
                await sink.drain()
                self.bytes += len(data)
                self._moved.set()
                await asyncio.sleep(self.pause_s)
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Ends, Proxy, Connection]]:
    """A server, and a worker that has attached over a proxy."""
    ends = Ends("tcp://127.0.0.1:*")
    try:
        async with Proxy(ends.server.endpoint) as proxy:
            connection = ends.connect(proxy.endpoint)
            await ends.until(lambda: len(ends.heard) == 1)
            yield ends, proxy, connection
    finally:
        ends.close()


@contextmanager
def beating(connection: Connection) -> Iterator[None]:
    """Beats of a worker: what was lost is sent again to a peer that speaks."""
    loop = asyncio.get_running_loop()

    def beat() -> None:
        nonlocal timer
        connection.send(Beat())
        timer = loop.call_later(0.02, beat)

    timer = loop.call_soon(beat)
    try:
        yield
    finally:
        timer.cancel()


async def test_nothing_is_lost_or_doubled_when_the_link_is_cut_again_and_again() -> None:
    async with linked() as (ends, proxy, connection):
        peer = ends.heard[0][0]
        with beating(connection):
            count = 0
            for _ in range(5):
                for _ in range(200):
                    connection.send(Ready(count, 0, 0))
                    ends.server.send(peer, Retire(count))
                    count += 1
                await ends.until(lambda half=count // 2: len(ends.heard) > half)
                proxy.cut()
            await ends.until(lambda: len(ends.heard) >= count + 1 and len(ends.told) >= count)
            assert [m for _, m in ends.heard[1:]] == [Ready(n, 0, 0) for n in range(count)]
            assert ends.told == [Retire(n) for n in range(count)]
            assert await ends.server.flush(LIMIT_S)
            assert await connection.flush(LIMIT_S)


async def test_a_worker_whose_link_was_cut_while_the_loop_stood_still_is_heard_again() -> None:
    """Its old connection still has messages that nobody has read when the new one is there."""
    async with linked() as (ends, proxy, connection):
        peer = ends.heard[0][0]
        ends.server._drain = lambda: None  # type: ignore[method-assign]  # as in a loop that stands still
        for begin in (0, 50):
            until = proxy.bytes + 300  # more than a greeting has
            for number in range(begin, begin + 50):
                connection.send(Ready(number, 0, 0))
            await proxy.passed(until)
            if not begin:
                proxy.cut()
        del ends.server._drain
        ends.server._is_scheduled = False
        ends.server.kick()
        ends.server.send(peer, Retire(7))
        with beating(connection):
            await ends.until(lambda: len(ends.heard) > 100 and len(ends.told) > 0)
        assert [m for _, m in ends.heard[1:]] == [Ready(n, 0, 0) for n in range(100)]
        assert {who for who, _ in ends.heard} == {peer}
        assert ends.told == [Retire(7)]
        assert proxy.links == 2, "it was heard only over a third connection"


async def test_a_message_that_is_long_on_its_way_arrives_over_the_link_that_it_began_on() -> None:
    """Both ways at once, each in twice the time after which a link that carries nothing is given up."""
    async with linked() as (ends, proxy, connection):
        peer = ends.heard[0][0]
        size = 100 * PIECE
        proxy.pause_s = 2 * SILENCE_MS / 1000 * PIECE / size
        said = PromptsEncoded(((0, size // 4),), ())
        connection.send(said, (bytes(size),))
        ends.server.send(peer, Train(0, ()), (bytes(size), b"", b""))
        await ends.until(lambda: len(ends.heard) > 1 and len(ends.told) > 0)
        assert (ends.heard[1:], ends.told) == ([(peer, said)], [Train(0, ())])
        assert proxy.links == 1


@pytest.mark.thorough
async def test_a_handshake_that_takes_some_seconds_is_waited_for(tmp_path: Path) -> None:
    """As over a cable whose queue is full, or to a satellite: three round trips before a pull."""
    hosts = Hosts(tmp_path)
    published, reader = hosts.publish(0), hosts.add("reader")
    try:
        async with Proxy(await hosts.add("trainer").start()) as proxy:
            proxy.pause_s = 2.0
            pulling = asyncio.create_task(reader.fetch(0, published.digest, [proxy.endpoint]))
            await proxy.passed(HANDSHAKE_BYTES)
            proxy.pause_s = 0.0
            assert is_same(published, (await pulling).location)
            assert proxy.links == 1
    finally:
        for neighbour in hosts.all:
            await neighbour.close()
        hosts.store.close()


async def test_the_kernel_ends_a_link_that_carries_nothing_at_either_end() -> None:
    async with linked():
        patience = []
        for link in psutil.Process().net_connections("tcp"):
            if link.status == psutil.CONN_ESTABLISHED:
                with socket(fileno=os.dup(link.fd)) as found:
                    patience.append(found.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT))
        assert sorted(patience) == [0, 0, SILENCE_MS, SILENCE_MS]  # the proxy's, and those of the two ends


def test_a_source_has_more_patience_with_a_proxy_that_takes_nothing_more_than_its_reader() -> None:
    """The kernel takes that for a dead link, too: behind a slow proxy no chunk ever arrived."""
    with zmq.Context() as context:
        source = serving_socket(context, "tcp://127.0.0.1:*", window=1, key=None)
        endpoint = source.getsockopt_string(zmq.LAST_ENDPOINT)
        reader = SourceConnection(context, endpoint, window=1, key=None)
        try:
            reader.socket.send(b"a word")
            assert source.recv_multipart()[1] == b"a word"
            here = int(endpoint.rpartition(":")[2])
            patience = {True: 0, False: 0}
            for link in psutil.Process().net_connections("tcp"):
                if link.status == psutil.CONN_ESTABLISHED and here in (link.laddr.port, link.raddr.port):
                    with socket(fileno=os.dup(link.fd)) as found:
                        patience[link.laddr.port == here] = found.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT)
            assert patience == {True: FULL_MS, False: SILENCE_MS}
        finally:
            reader.close()
            source.close(0)


async def test_what_a_cut_took_is_said_again_though_nobody_speaks() -> None:
    """The first words of both, too: the worker does not beat before it was welcomed."""
    async with linked() as (ends, proxy, connection):
        peer = ends.heard[0][0]
        proxy.pause_s = LIMIT_S  # what is said from here on stays in the proxy
        connection.send(Ready(1, 0, 0))
        ends.server.send(peer, Retire(1))
        moved = proxy.bytes
        await proxy.passed(moved + 1)
        proxy.pause_s = 0.0
        proxy.cut()
        await ends.until(lambda: len(ends.heard) > 1 and len(ends.told) > 0)
        assert (ends.heard[1:], ends.told) == ([(peer, Ready(1, 0, 0))], [Retire(1)])


async def test_a_worker_that_is_cut_off_before_its_welcome_is_welcomed_over_the_next_link() -> None:
    ends = Ends("tcp://127.0.0.1:*")
    try:
        async with Proxy(ends.server.endpoint) as proxy:
            ends.on_message = lambda peer, message: proxy.cut() if proxy.links == 1 else None
            ends.connect(proxy.endpoint)
            await ends.until(lambda: len(ends.heard) == 1)
            ends.server.send(ends.heard[0][0], Retire(7))  # the link that it would go over is gone
            await ends.until(lambda: ends.told == [Retire(7)])
            assert len(ends.heard) == 1
    finally:
        ends.close()


async def test_a_peer_that_ends_with_its_queue_full_costs_nobody_anything(tmp_path: Path) -> None:
    """libzmq used to abort the process here: its heartbeat was due on the link that had ended."""
    script = """
import asyncio, sys
from protocol.messages import Attach, Ready
from protocol.wire.connection import Connection

async def main():
    connection = Connection(sys.argv[1], on_message=lambda *_: None, on_fault=print)
    connection.start()
    connection.send(Attach("rollout", "floods", 1, "here"))
    for number in range(3000):
        connection.send(Ready(number, 0, 0))
    backlog, looks = connection._conversation.backlog, [0]
    while len(looks) < 20:  # until all queues on the way are full: how much the kernel's takes depends
        looks = [*looks, len(backlog)] if len(backlog) == looks[-1] < 2000 else [len(backlog)]
        await asyncio.sleep(0.05)
    print("said", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    ends = Ends(f"ipc://{tmp_path}/socket")
    process = None
    try:
        ends.server._drain = lambda: None  # type: ignore[method-assign]  # as in a loop that stands still
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, ends.server.endpoint, stdout=PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        process.kill()
        await process.wait()
        assert ends.server._socket.getsockopt(zmq.HEARTBEAT_IVL) == 0, "none can be due on the ended link"
        del ends.server._drain
        ends.server._is_scheduled = False
        ends.server.kick()
        await ends.until(lambda: len(ends.heard) > 1000)
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        ends.close()
