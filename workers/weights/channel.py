"""The words by which a host gets a version from another one, and the sockets that they go over.

Invariants: a reader asks for what it has room for, so nothing piles up anywhere: a sender queues no more than
one window per reader, by reference; a word is one fixed header, and for an answer the bytes themselves; what
a source is still receiving is answered when it has it; a chunk that is asked for as a delta is answered with
one, or whole.
"""

import struct
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol.errors import WeightsError
from protocol.settings import Section
from protocol.wire import dead_links
from protocol.wire.security import ServerKey, WorkerKey, secure_client, secure_server
from workers.weights.manifest import CHUNK_BYTES, MAX_HEADER_BYTES

WORD = struct.Struct("<cQQQ")  # kind, policy version, chunk, base
HEADER, CHUNK, DELTA, GONE = b"H", b"C", b"D", b"G"
MAX_TEXT = 1000
AT_ONCE = 8  # words heard before it is somebody else's turn
MAX_REQUEST_BYTES = 1024  # of a word, and of what ZeroMQ itself says in a handshake


class Word(NamedTuple):
    """What is asked for, or answered."""

    kind: bytes
    policy_version: int
    chunk: int = 0
    base: int = 0
    """Of DELTA: the version that the chunk is told by. A source answers with CHUNK where it has no better."""

    def encode(self) -> bytes:
        """Its bytes."""
        return WORD.pack(*self)


class Orders(Section):
    """What an exchange is started with, on its standard input: a secret does not belong in an argument."""

    directory: str
    bind: str  # tcp://ADDRESS:*
    window_bytes: int
    key: ServerKey | None = None
    is_writers: bool = False  # the folder is the trainer's, which retires what lies there itself
    deltas: bool = True  # ask for chunks as what differs from the newest version here


def decode(frame: bytes) -> Word | None:
    """The word in a frame; None if it is none."""
    if len(frame) != WORD.size:
        return None
    word = Word(*WORD.unpack(frame))
    return word if word.kind in (HEADER, CHUNK, DELTA, GONE) else None


def serving_socket(
    context: zmq.Context[Any], bind: str, *, window: int, key: ServerKey | None
) -> zmq.Socket[Any]:
    """Bound, to a free port; with a key, it needs a CurveAuthenticator in the same context."""
    socket = _socket(context, zmq.ROUTER, bind, window=window)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    if key is not None:
        secure_server(socket, key.secret)
    socket.bind(bind)
    return socket


class SourceConnection:
    """One with a source, and the news of it."""

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, *, window: int, key: ServerKey | None
    ) -> None:
        """Begin it. Raises: WeightsError if nothing can be at such an endpoint; all is closed then."""
        self.endpoint = endpoint
        self.socket = _socket(context, zmq.DEALER, endpoint, window=window)
        self.socket.setsockopt(zmq.MAXMSGSIZE, max(CHUNK_BYTES, MAX_HEADER_BYTES + 8))
        if key is not None:
            secure_client(
                self.socket, WorkerKey(name="weights", roles=(), **key.model_dump(), server=key.public)
            )
        lost = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
        self._monitor = self.socket.get_monitor_socket(lost | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()  # one that is left open keeps the context, and so the process, from ending
            raise WeightsError(
                f"{endpoint!r} cannot be reached: {error}. Expected tcp://HOST:PORT."
            ) from None

    @property
    def sockets(self) -> list[zmq.Socket[Any]]:
        """What to poll: the source, and the news."""
        return [self.socket, self._monitor]

    def lost(self) -> str | None:
        """What has ended it, or keeps it from coming about; None if nothing has."""
        if not int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            return None
        event = recv_monitor_message(self._monitor)["event"]
        return str(zmq.Event(event).name).lower().replace("_", " ")

    def close(self) -> None:
        """End it."""
        self.socket.disable_monitor()
        self.socket.close(0)
        self._monitor.close(0)


def _socket(context: zmq.Context[Any], kind: int, endpoint: str, *, window: int) -> zmq.Socket[Any]:
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        # twice what is asked for: libzmq hears of what was read only every half of its mark
        (zmq.SNDHWM, 2 * window + 2),
        (zmq.RCVHWM, 2 * window + 2),
        *dead_links.OPTIONS,
        (zmq.HANDSHAKE_IVL, dead_links.SILENCE_MS),
        (zmq.IPV6, int("[" in endpoint)),
    ):
        socket.setsockopt(option, value)
    return socket
