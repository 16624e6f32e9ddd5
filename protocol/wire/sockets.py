"""A ZeroMQ socket that a reader callback of the event loop drains, and the conversations over it.

Invariants:
- Only the drain receives, a bounded number of messages at a time.
- A busy socket is drained once per PAUSE_S, a very busy one up to MOST_PAUSES times as seldom, so that its
  owner takes many messages at once; a quiet one is drained without pauses. Messages wait in libzmq meanwhile,
  unacknowledged.
- libzmq's descriptor signals a mailbox that a send reads, too, so a send can take the signal of a received
  message: each send outside the drain is followed by `kick`, or the socket falls silent for good (in 10 of 30
  stress runs without it, in none with it).
- Messages that a full or absent peer does not take stay in its session, bounded in bytes and in number.

Measured: one echoed message costs 1.2 to 1.9 us of loop CPU this way, 17 to 19 through zmq.asyncio.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import zmq

from protocol.errors import LocalError
from protocol.messages import Beat, Message, Relinked
from protocol.wire import dead_links
from protocol.wire.codec import Packet, encode
from protocol.wire.porter import ACCEPTED, CLOSED, HANDSHAKE_S, Porter, next_event
from protocol.wire.session import Session

Frames = tuple[bytes, ...]

NOBLOCK = int(zmq.NOBLOCK)  # plain integers: arithmetic on pyzmq's enums costs 1 us a time
MORE = int(zmq.SNDMORE) | NOBLOCK
POLLIN = int(zmq.POLLIN)
EVENTS = int(zmq.EVENTS)
DRAIN_LIMIT = 256  # messages taken in one callback, so that timers and other sockets get their turn
PAUSE_S = 0.02  # from one drain to the next, where messages are many
MOST_PAUSES = 3.0  # times PAUSE_S, from 600 messages a second on: each turn has 2 ms of fixed cost
MANY = 30.0  # messages, whose weight halves in HALF_S: 200 a second
HALF_S = 0.1
RETRY_S = 0.01  # between two tries to send to a full or absent peer
COPY_BYTES = 65_536  # from here on libzmq refers to the buffer instead of copying it
MAX_UNACKED = 65_536  # messages that may wait for one peer's acknowledgement
DRAIN_EVENTS = 1024  # events of connections read in one callback
SRCFD = int(zmq.SRCFD)
REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
GARBLED = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)  # no ZeroMQ, other security, or the wrong server key
LINKED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
BROKEN = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)  # closed half way by the other side


class FrameLimits(NamedTuple):
    """How much of one message is read."""

    bytes: int  # of one frame; the connection of a longer one is closed
    frames: int


class Conversation:
    """The session with one peer, and the packets of it that the socket has not taken yet.

    Unacknowledged messages are sent again over a new link, which the worker's end notices and reports. They
    are also sent again to a peer that sends messages but acknowledges nothing for `resend_s`, a time that
    doubles with each resend: maybe a long message is only slow. Nothing is sent again to a silent peer: it
    may just be busy, with the messages in its own buffer.
    """

    def __init__(self, transmit: Callable[[list[bytes]], None], *, resend_s: float) -> None:
        self.session = Session()
        self.backlog: deque[Packet] = deque()
        self._transmit = transmit
        self._resend_s = self._patience_s = resend_s
        self._is_unreachable = False
        self._stalled_since: float | None = None

    def send(self, message: Message, frames: Frames) -> None:
        """Send a message in order. Raises: LocalError if too much is unacknowledged."""
        packet = self.session.send(message, frames)
        if self.session.unacked > MAX_UNACKED:
            raise LocalError(
                f"{self.session.unacked} messages wait for an acknowledgement; expected at most "
                f"{MAX_UNACKED}. The peer has stopped reading: treat it as lost."
            )
        if self._is_unreachable or (self.backlog and not packet.sequence):
            return  # the session keeps it; a late beat is useless
        self.backlog.append(packet)
        if len(self.backlog) == 1:
            self.flush()

    def flush(self) -> None:
        """Give the socket as much of the backlog as it takes."""
        while self.backlog:
            packet = self.backlog[0]
            try:
                self._transmit(encode(packet._replace(ack=self.session.received)))
            except zmq.Again:
                if type(packet.message) is Beat:
                    self.backlog.popleft()
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._is_unreachable = True
                self.backlog.clear()
                return
            self.backlog.popleft()

    def hear(self, packet: Packet, now: float) -> bool:
        """Take a packet; returns whether its message is new and next in order."""
        before = self.session.unacked
        is_new = self.session.receive(packet)
        if self._is_unreachable or type(packet.message) is Relinked:
            self._is_unreachable = False
            self._resend()
        elif self.backlog or self.session.unacked == 0 or self.session.unacked < before:
            self._stalled_since, self._patience_s = None, self._resend_s
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since >= self._patience_s:
            self._patience_s *= 2
            self._resend()
        return is_new

    def relinked(self) -> None:
        """Send over a new link that it is new, and all that the old one may have lost."""
        self._resend()
        self.backlog.append(self.session.send(Relinked()))
        self.flush()

    def _resend(self) -> None:
        self._stalled_since = None
        self.backlog = deque(self.session.resend())  # the end of the drain hands it to the socket


class DrainedSocket(ABC):
    """A socket drained by the running loop. Subclasses say what to do with one message's frames."""

    def __init__(self, kind: int, *, is_ipv6: bool, limits: FrameLimits) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(kind)
        self._descriptor = self._socket.fileno()  # kept, as pyzmq asks libzmq for it each time
        self._is_router = kind == zmq.ROUTER
        self._max_frames = limits.frames  # what comes beyond is dropped, so the counts no longer agree
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        self._pause_s = 0.0  # between two drains, where messages are many
        self._drained_at = -inf
        self._heard = 0.0  # messages, weighted by their age
        self._retry: asyncio.TimerHandle | None = None
        self._flushed: asyncio.Event | None = None
        self._carries_users = False  # whether the other side has shown a key
        self._user = ""  # public key that the connection of the message being read has shown
        self._monitor: zmq.Socket[bytes] | None = None
        self._porter: Porter | None = None
        self._blocked: dict[Conversation, None] = {}  # those with a backlog
        for option, value in (
            (zmq.LINGER, 0),  # the default keeps a process from ending while a peer is gone
            (zmq.SNDHWM, 1000),
            (zmq.RCVHWM, 1000),
            (zmq.MAXMSGSIZE, limits.bytes),
            (zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_S)),
            *dead_links.OPTIONS,
            (zmq.IPV6, int(is_ipv6)),  # always on, it would write 127.0.0.1 as [::ffff:127.0.0.1]
        ):
            self._socket.setsockopt(option, value)

    def start(self) -> None:
        """Begin to receive, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.kick)
        if self._monitor is not None:
            self._loop.add_reader(self._monitor.fileno(), self._drain_monitor)
            self._loop.call_soon(self._drain_monitor)
        self.kick()

    def kick(self) -> None:
        """Drain the socket soon. Needed after every send outside the drain."""
        if self._is_scheduled or self._loop is None:
            return
        self._is_scheduled = True
        due = self._drained_at + self._pause_s * min(self._heard / MANY, MOST_PAUSES)
        if self._heard < MANY or due <= self._loop.time():
            self._loop.call_soon(self._drain)
        else:
            self._loop.remove_reader(self._descriptor)  # it would call until the drain
            self._loop.call_at(due, self._drain_after_pause)

    def _drain_after_pause(self) -> None:
        if not self._socket.closed and self._loop is not None:
            self._loop.add_reader(self._descriptor, self.kick)
            self._drain()

    def close(self, *, linger_ms: int = 0) -> None:
        """Free the socket; messages that libzmq has not put on the wire after `linger_ms` are dropped."""
        if self._socket.closed:
            return
        if self._retry is not None:
            self._retry.cancel()
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        if self._monitor is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._monitor.fileno())
            while next_event(self._monitor) is not None:
                pass  # libzmq's thread may wait for room here, holding the lock that the next line needs
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(linger_ms)
        self._context.term()

    async def flush(self, limit_s: float) -> bool:
        """Wait until all messages are acknowledged; returns whether they were within `limit_s`."""
        self._flushed = asyncio.Event()
        self.kick()
        try:
            async with asyncio.timeout(limit_s):
                await self._flushed.wait()
        except TimeoutError:
            return False
        return True

    @abstractmethod
    def _sessions(self) -> list[Session]:
        """The conversations that `flush` waits for."""

    @abstractmethod
    def _take(self, frames: list[bytes], now: float) -> None:
        """Act on the frames of one packet that was read."""

    @abstractmethod
    def _after_drain(self) -> None:
        """Called after each drain."""

    def _watch_handshakes(self, on_failed: Callable[[int], None], *, also: int = 0) -> None:
        """Report failed handshakes: REFUSED, GARBLED or BROKEN. Call it before bind or connect."""
        self._on_handshake_failed = on_failed
        self._monitor = self._socket.get_monitor_socket(REFUSED | GARBLED | BROKEN | also)

    def _guard(self, endpoint: str, strangers: int, *, on_crowd: Callable[[], None]) -> None:
        """Let at most so many connections without a shown key wait here; report each that is closed for it.

        The monitor watches ACCEPTED and CLOSED.
        """
        self._porter, self._on_crowd = Porter(endpoint, most=strangers), on_crowd

    def _drain_monitor(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for _ in range(DRAIN_EVENTS):
            if self._monitor is None or self._monitor.closed or (event := next_event(self._monitor)) is None:
                return
            what, value = event
            if what not in (ACCEPTED, CLOSED):
                self._on_handshake_failed(what)
            elif self._porter is not None and self._porter.hear(what, value, now):
                self._on_crowd()
        self._loop.call_soon(self._drain_monitor)

    def _drain(self) -> None:
        self._is_scheduled = False
        assert self._loop is not None
        now = self._loop.time()
        taken = 0
        try:
            while taken < DRAIN_LIMIT:
                if self._socket.closed:
                    return
                self._take(self._receive(), now)
                taken += 1
            self._is_scheduled = True
            self._loop.call_soon(self._drain)
        except zmq.Again:
            pass
        if taken:
            self._heard = taken + self._heard * 0.5 ** ((now - self._drained_at) / HALF_S)
            self._drained_at = now
        self._after_drain()
        if self._socket.closed:
            return
        for conversation in list(self._blocked):
            conversation.flush()
            self._watch(conversation)
        if self._flushed is not None and not any(session.unacked for session in self._sessions()):
            self._flushed.set()
        if int(self._socket.getsockopt(EVENTS)) & POLLIN:
            self.kick()

    def _receive(self) -> list[bytes]:
        recv = self._socket.recv
        frames: list[bytes] = []
        flags = NOBLOCK
        if self._is_router:
            frames.append(recv(NOBLOCK))
            flags = 0
        while True:
            frame = recv(flags, False)
            if len(frames) < self._max_frames:
                frames.append(frame.bytes)
            if not frame.more:
                if self._porter:  # somebody waits: perhaps who says this
                    self._porter.gone(int(frame.get(SRCFD)))
                if self._carries_users:
                    self._user = str(frame.get("User-Id"))
                return frames
            flags = 0

    def _transmit(self, frames: list[bytes]) -> None:
        send = self._socket.send
        for frame in frames[:-1]:
            send(frame, MORE, len(frame) < COPY_BYTES)
        send(frames[-1], NOBLOCK, len(frames[-1]) < COPY_BYTES)

    def _watch(self, conversation: Conversation) -> None:
        """Try again later if the socket did not take everything."""
        if not conversation.backlog:
            self._blocked.pop(conversation, None)
            return
        self._blocked[conversation] = None
        if self._retry is None and self._loop is not None:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._drain()
