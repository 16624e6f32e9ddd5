"""The messages by which a host requests a version from another host, and the sockets that carry them.

Invariants: a reader requests only what it has room for, so nothing piles up: a sender queues at most one
window per reader, by reference; a message is a fixed header, and for an answer the bytes themselves; a
request for a chunk that the source is still receiving is answered when the chunk has come; a requested delta
is answered by a delta, or by the whole chunk.
"""

import struct
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol.errors import WeightsError
from protocol.settings import Section
from protocol.wire import dead_links
from protocol.wire.porter import HANDSHAKE_S
from protocol.wire.security import ServerKey, WorkerKey, secure_client, secure_server
from workers.weights.manifest import CHUNK_BYTES, MAX_HEADER_BYTES

WORD = struct.Struct("<cQQQ")  # kind, policy version, chunk, base
HEADER, CHUNK, DELTA, GONE = b"H", b"C", b"D", b"G"
MAX_TEXT = 1000
WRONG_KEY = "handshake failed auth"  # of `SourceConnection.lost`: no network is to blame
AT_ONCE = 8  # messages handled in a row before other sockets have their turn
FULL_MS = 60_000  # that a slow proxy may take nothing more: the reader, who waits, knows if a link is dead
MAX_REQUEST_BYTES = 1024  # of a message, and of ZeroMQ's own in a handshake


class Word(NamedTuple):
    """A request or an answer, without its content."""

    kind: bytes
    policy_version: int
    chunk: int = 0
    base: int = 0
    """Of DELTA: the version it is against. A source answers with CHUNK if it has no useful delta."""

    def encode(self) -> bytes:
        """The message as bytes."""
        return WORD.pack(*self)


class Orders(Section):
    """The setup of an exchange, on its standard input: a secret does not belong in an argument."""

    directory: str
    on_disk: str | None = None  # a folder in its place if shared memory has no room for its versions
    bind: str  # tcp://ADDRESS:*
    window_bytes: int
    key: ServerKey | None = None
    is_writers: bool = False  # the folder is the trainer's, which retires its versions itself
    deltas: bool = True  # request chunks as deltas against the newest version here


def decode(frame: bytes) -> Word | None:
    """The message in a frame; None if it is malformed."""
    if len(frame) != WORD.size:
        return None
    word = Word(*WORD.unpack(frame))
    return word if word.kind in (HEADER, CHUNK, DELTA, GONE) else None


def serving_socket(
    context: zmq.Context[Any], bind: str, *, window: int, key: ServerKey | None
) -> zmq.Socket[Any]:
    """A socket bound to a free port; with a key, it needs a CurveAuthenticator in the same context."""
    socket = _socket(context, zmq.ROUTER, bind, window=window)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    socket.setsockopt(zmq.TCP_MAXRT, FULL_MS)
    if key is not None:
        secure_server(socket, key.secret)
    socket.bind(bind)
    return socket


class SourceConnection:
    """A connection to a source, with its connection events."""

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, *, window: int, key: ServerKey | None
    ) -> None:
        """Begin to connect. Raises: WeightsError, with all sockets closed, if the endpoint is impossible."""
        self.endpoint = endpoint
        self.socket = _socket(context, zmq.DEALER, endpoint, window=window)
        self.socket.setsockopt(zmq.MAXMSGSIZE, max(CHUNK_BYTES, MAX_HEADER_BYTES + 8))
        if key is not None:
            secure_client(
                self.socket, WorkerKey(name="weights", roles=(), **key.model_dump(), server=key.public)
            )
        self._descriptor = -1  # of the connection, once it is made
        lost = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
        self._monitor = self.socket.get_monitor_socket(
            lost | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_CONNECTED
        )
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()  # an open socket keeps the context, and so the process, from ending
            raise WeightsError(
                f"{endpoint!r} cannot be reached: {error}. Expected tcp://HOST:PORT."
            ) from None

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """The sockets to poll: the source, and its connection events."""
        return [self.socket, self._monitor]

    def lost(self) -> str | None:
        """The event that has ended the connection, or keeps it from being made; None if there is none."""
        while int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            told = recv_monitor_message(self._monitor)
            if told["event"] != zmq.EVENT_CONNECTED:
                return str(zmq.Event(told["event"]).name).lower().replace("_", " ")
            self._descriptor = told["value"]
        return None

    def arrived_bytes(self) -> int:
        """Bytes that have come from the source, those of unfinished messages included; 0 if nobody counts."""
        return dead_links.arrived_bytes(self._descriptor)

    def close(self) -> None:
        """Close the connection."""
        self.socket.disable_monitor()
        self.socket.close(0)
        self._monitor.close(0)


def _socket(context: zmq.Context[Any], kind: int, endpoint: str, *, window: int) -> zmq.Socket[Any]:
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        # twice the window: libzmq counts messages as read only every half of its mark
        (zmq.SNDHWM, 2 * window + 2),
        (zmq.RCVHWM, 2 * window + 2),
        *dead_links.OPTIONS,
        (zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_S)),
        (zmq.IPV6, int("[" in endpoint)),
    ):
        socket.setsockopt(option, value)
    return socket
