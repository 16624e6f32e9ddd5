"""The sockets, with real ones: order, stalls, cuts, garbage, slow peers, addresses."""

import asyncio
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from protocol.errors import LocalError
from protocol.ids import PeerId
from protocol.messages import (
    GIVEN,
    Attach,
    Beat,
    Close,
    Control,
    DrainWorker,
    Message,
    PromptsEncoded,
    Ready,
    Reattach,
    Retire,
    Train,
    TrainItem,
)
from protocol.messages.pieces import Segment
from protocol.wire.codec import MAX_HEADER_BYTES, Packet, decode, encode
from protocol.wire.connection import Connection
from protocol.wire.server import Server

ATTACH = Attach("rollout", "test", 1, "here")
LIMIT_S = 300  # nothing here takes a second; a test that hangs fails


class Ends:
    """One server and any number of connections, with everything that they heard."""

    def __init__(self, endpoint: str, *, resend_s: float = 2.0 * LIMIT_S) -> None:
        """Nothing is said again by itself, however late the acknowledgement is, unless `resend_s` says so."""
        self.heard: list[tuple[PeerId, Message]] = []  # by the server, beats left out
        self.faults: list[tuple[PeerId, str]] = []
        self.refusals: list[str] = []
        self.told: list[Message] = []  # by all connections, beats left out
        self.blamed: list[str] = []
        self.drains = 0
        self._resend_s = resend_s
        self._news = asyncio.Event()
        self.on_message: Callable[[PeerId, Message], None] = lambda peer, message: None
        self.server = Server(
            endpoint,
            on_message=self._hear,
            on_fault=self._fault,
            on_drained=self._drained,
            on_refusal=self.refusals.append,
            resend_s=resend_s,
        )
        self.server.start()
        self._sockets: list[Server | Connection] = [self.server]

    def connect(self, endpoint: str | None = None, *, attach: bool = True) -> Connection:
        connection = Connection(
            endpoint or self.server.endpoint,
            on_message=self._tell,
            on_fault=self._blame,
            resend_s=self._resend_s,
        )
        self._sockets.append(connection)
        connection.start()
        if attach:
            connection.send(ATTACH)
        return connection

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something was heard that makes the condition true."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _hear(self, peer: PeerId, message: Message, frames: tuple[bytes, ...]) -> None:
        if not isinstance(message, Beat):
            self.heard.append((peer, message))
            self.on_message(peer, message)
        self._news.set()

    def _fault(self, peer: PeerId, reason: str) -> None:
        self.faults.append((peer, reason))
        self._news.set()

    def _blame(self, reason: str) -> None:
        self.blamed.append(reason)
        self._news.set()

    def _drained(self) -> None:
        self.drains += 1

    def _tell(self, message: Message, frames: tuple[bytes, ...]) -> None:
        if not isinstance(message, Beat):
            self.told.append(message)
        self._news.set()


@pytest.fixture
async def ends(tmp_path: Path) -> Iterator[Ends]:  # type: ignore[misc]
    made = Ends(f"ipc://{tmp_path}/socket")
    yield made
    made.close()


Dial = Callable[..., zmq.Socket[bytes]]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Makes raw sockets, which can say anything."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers: list[zmq.Socket[bytes]] = []

    def dial(endpoint: str, **options: int) -> zmq.Socket[bytes]:
        dealers.append(context.socket(zmq.DEALER))
        for name, value in options.items():
            dealers[-1].setsockopt(getattr(zmq, name), value)
        dealers[-1].connect(endpoint)
        return dealers[-1]

    yield dial
    for dealer in dealers:
        dealer.close(0)
    context.term()


async def test_messages_arrive_in_order_both_ways_and_are_acknowledged(ends: Ends) -> None:
    connection = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    peer = ends.heard[0][0]
    assert peer == connection.routing_id.hex()
    for number in range(2000):
        connection.send(Ready(number, 0, 0))
        ends.server.send(peer, Retire(number))
    await ends.until(lambda: len(ends.heard) == 2001 and len(ends.told) == 2000)
    assert [m for _, m in ends.heard[1:]] == [Ready(n, 0, 0) for n in range(2000)]
    assert ends.told == [Retire(n) for n in range(2000)]
    connection.send(Beat())  # acknowledges what was told; its answer acknowledges what was said
    assert await ends.server.flush(LIMIT_S)
    assert await connection.flush(LIMIT_S)
    assert 0 < ends.drains <= 2002


async def test_sends_from_outside_the_drain_never_stall_the_server(ends: Ends) -> None:
    """Sixteen peers with four messages under way each; every answer is sent from a callback of its own."""
    loop = asyncio.get_running_loop()
    total = 16 * 1500
    ends.on_message = lambda peer, message: (
        loop.call_soon(ends.server.send, peer, Retire(0)) if isinstance(message, Ready) else None
    )
    connections = [ends.connect() for _ in range(16)]
    told = 0

    def echo(connection: Connection) -> Callable[[Message, tuple[bytes, ...]], None]:
        def on_message(message: Message, frames: tuple[bytes, ...]) -> None:
            nonlocal told
            if isinstance(message, Retire):
                told += 1
                if told + 64 <= total:
                    connection.send(Ready(0, 0, 0))
                ends._news.set()

        return on_message

    for connection in connections:
        connection._on_message = echo(connection)
        for _ in range(4):
            connection.send(Ready(0, 0, 0))
    await ends.until(lambda: told == total)


async def test_a_send_that_swallows_the_socket_s_signal_delays_nothing(ends: Ends, dial: Dial) -> None:
    """The stall of the stress above, made to happen: a message is signalled, a send reads the mailbox."""
    dealer = dial(ends.server.endpoint)
    dealer.send_multipart(encode(Packet(1, 0, ATTACH, ())))
    await ends.until(lambda: len(ends.heard) == 1)
    for number in range(20):
        dealer.send_multipart(encode(Packet(number + 2, 0, Ready(number, 0, 0), ())))
        assert select.select([ends.server._socket.fileno()], [], [], LIMIT_S)[0]
        ends.server.send(ends.heard[0][0], Retire(number))
        await ends.until(lambda number=number: len(ends.heard) == number + 2)


async def test_garbage_drops_its_sender_alone_and_tells_it_why(ends: Ends, dial: Dial) -> None:
    good = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    hello = encode(Packet(1, 0, ATTACH, ()))
    speeches = [
        [[os.urandom(30)]],
        [[b""]],
        [encode(Packet(1, 0, Close("no", False), ()))],
        [[b"x"] * 20_000],
        [hello, encode(Packet(2, 0, PromptsEncoded(((0, 2),), ()), (b"short",)))],
        [hello, encode(Packet(2, 0, Close("no", False), ()))],
        [hello, encode(Packet(2, 0, ATTACH, ()))],
        [hello, encode(Packet(2, 0, DrainWorker("other"), ()))],
        [hello, encode(Packet(2, 0, Control("pause", "", "worker", ""), ()))],
    ]
    dealers = [dial(ends.server.endpoint) for _ in speeches]
    for dealer, speech in zip(dealers, speeches, strict=True):
        for frames in speech:
            dealer.send_multipart(frames)
    await ends.until(lambda: len(ends.faults) == 5)
    reasons = " ".join(reason for _, reason in ends.faults)
    for words in ("frames of [5] bytes", "say Close", "say Attach", "say DrainWorker", "say Control"):
        assert words in reasons
    for dealer in dealers:
        packet = decode(await asyncio.to_thread(dealer.recv_multipart))
        assert isinstance(packet.message, Close)
        assert packet.message.is_fault
    assert not [message for _, message in ends.heard if isinstance(message, DrainWorker | Control)]
    assert len(ends.refusals) == 1  # of four peers that never attached
    good.send(Ready(1, 2, 3))
    await ends.until(lambda: ends.heard[-1][1] == Ready(1, 2, 3))
    assert good.routing_id.hex() not in {peer for peer, _ in ends.faults}


async def test_a_worker_that_comes_back_is_another_peer(ends: Ends) -> None:
    first = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    first.close()
    ends.connect()
    await ends.until(lambda: len(ends.heard) == 2)
    (old, _), (new, _) = ends.heard
    assert old != new
    ends.server.send(old, Retire(1))
    ends.server.send(new, Retire(2))
    await ends.until(lambda: ends.told == [Retire(2)])
    ends.server.forget(old)
    ends.server.send(old, Retire(3))  # nobody is there: ignored
    assert ends.faults == []


async def test_a_forgotten_worker_is_told_that_it_may_attach_anew(ends: Ends) -> None:
    connection = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    ends.server.forget(ends.heard[0][0])
    await ends.until(lambda: ends.told == [Reattach()])
    assert await connection.flush(LIMIT_S)  # what it had said before was taken
    connection.send(Ready(1, 0, 0))
    await ends.until(lambda: ends.told == [Reattach(), Reattach()])
    assert len(ends.heard) == 1


async def test_a_closed_worker_that_speaks_again_hears_the_same_again(ends: Ends) -> None:
    connection = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    ends.server.send(ends.heard[0][0], Close("The run is over.", False))
    ends.server.forget(ends.heard[0][0])
    await ends.until(lambda: len(ends.told) == 2)
    connection.send(Ready(1, 0, 0))
    await ends.until(lambda: len(ends.told) == 3)
    assert set(ends.told) == {Close("The run is over.", False)}


async def test_a_worker_of_an_earlier_controller_is_told_to_attach_anew(ends: Ends, dial: Dial) -> None:
    dealer = dial(ends.server.endpoint)
    dealer.send_multipart(encode(Packet(7, 3, Ready(0, 0, 0), ())))
    assert decode(await asyncio.to_thread(dealer.recv_multipart)).message == Reattach()
    assert ends.heard == ends.faults == []


async def test_a_slow_peer_gets_everything_later_and_holds_up_nobody(ends: Ends, dial: Dial) -> None:
    slow = dial(ends.server.endpoint, RCVHWM=1)
    slow.send_multipart(encode(Packet(1, 0, ATTACH, ())))
    await ends.until(lambda: len(ends.heard) == 1)
    peer = ends.heard[0][0]
    row = os.urandom(1 << 16)
    count = 3000  # of 64 KiB: far more than the socket's queues and the kernel's buffers hold
    for number in range(count):
        ends.server.send(peer, Train(number, ()), (row, b"", b""))
    assert ends.server._blocked
    ends.connect()
    await ends.until(lambda: len(ends.heard) == 2)
    ends.server.send(ends.heard[1][0], Retire(1))
    await ends.until(lambda: ends.told == [Retire(1)])

    def read_all() -> list[int]:
        return [decode(slow.recv_multipart()).message.train_version for _ in range(count)]  # type: ignore[attr-defined]

    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.to_thread(read_all) == list(range(count))


async def test_a_peer_that_never_acknowledges_is_dropped_at_the_bound(ends: Ends) -> None:
    ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    peer = ends.heard[0][0]
    frame = bytes(1 << 28)
    for _ in range(5):  # 1.25 GiB by reference; nothing is copied before it is on the wire
        ends.server.send(peer, Train(0, ()), (frame, b"", b""))
    await ends.until(lambda: len(ends.faults) == 1)
    assert "stopped reading" in ends.faults[0][1]


async def test_a_frame_beyond_the_limit_is_refused_where_it_is_sent(ends: Ends) -> None:
    connection = ends.connect()
    with pytest.raises(LocalError, match="67108865 bytes; the other side accepts 67108864"):
        connection.send(PromptsEncoded(((0, 1),), ()), (bytes((64 << 20) + 1),))


async def test_a_batch_of_many_turns_is_heard_though_a_worker_may_not_say_as_much(ends: Ends) -> None:
    connection = ends.connect()
    await ends.until(lambda: len(ends.heard) == 1)
    turns = tuple(Segment(number, GIVEN if number % 2 else 3, 1000) for number in range(2000))
    outcomes = tuple(0.5 for _ in turns)
    episodes = tuple(TrainItem(1, one, 7, 0.5, 0.5, "stop", turns, one, outcomes) for one in range(600))
    batch = Train(4, episodes, ahead=len(episodes))
    assert len(encode(Packet(1, 0, batch, ()))[0]) > MAX_HEADER_BYTES
    ends.server.send(ends.heard[0][0], batch, (b"", b"", b""))
    await ends.until(lambda: ends.told == [batch] or bool(ends.blamed))
    assert ends.blamed == []
    connection.close()
