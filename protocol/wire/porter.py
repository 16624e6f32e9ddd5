"""How many connections may wait at a listening socket without having shown who they are.

Invariants: a connection waits from its acceptance to its first message, its end, or the moment at which
libzmq ends a handshake that has not come to its end; of one address (one network of 64 bits for IPv6) at most
`most_of_one` wait, and in all `most`; beyond that the oldest makes room for the newest. So an honest worker,
whose handshake takes milliseconds, gets in however many idle connections are held open beside it, and they
never take the descriptors that the run needs.
"""

import ipaddress
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable

import zmq

ACCEPTED, CLOSED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
NOBLOCK = int(zmq.NOBLOCK)
EVENT = struct.Struct("=HI")  # libzmq's: what happened, and a value
HANDSHAKE_S = 5.0  # then libzmq closes a connection that has not come through
SURE_S = HANDSHAKE_S + 1.0  # who is there after so long has come through


class Porter:
    """The connections that wait, by their descriptors."""

    def __init__(self, endpoint: str, *, most: int) -> None:
        """`endpoint`: the TCP endpoint that was bound."""
        self._port = int(endpoint.rpartition(":")[2])
        self.most, self.most_of_one = most, max(1, most // 2)
        self._family = socket.AF_INET6 if "[" in endpoint else socket.AF_INET
        self._waiting: OrderedDict[int, tuple[str, float]] = OrderedDict()  # -> address, since; oldest first
        self._of: dict[str, OrderedDict[int, None]] = {}  # address -> descriptors, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def hear(self, what: int, descriptor: int, now: float) -> bool:
        """Take the news of ACCEPTED or CLOSED; whether one was ended to make room for this one."""
        if what == CLOSED:
            self.gone(descriptor)
            return False
        address = self._ask(descriptor, lambda end: end.getpeername()[0])
        oldest = self.come(descriptor, address, now) if address else None
        if oldest is not None:
            self._ask(oldest, self._end)
        return oldest is not None

    def come(self, descriptor: int, address: str, now: float) -> int | None:
        """A connection was accepted; the one that makes room for it, if one must."""
        self.gone(descriptor)
        while self._waiting and now - next(iter(self._waiting.values()))[1] > SURE_S:
            self.gone(next(iter(self._waiting)))
        group = _network(address)
        self._waiting[descriptor] = group, now
        of_one = self._of.setdefault(group, OrderedDict())
        of_one[descriptor] = None
        if len(of_one) > self.most_of_one:
            oldest = next(iter(of_one))
        elif len(self._waiting) > self.most:
            oldest = next(iter(self._waiting))
        else:
            return None
        self.gone(oldest)
        return oldest

    def gone(self, descriptor: int) -> None:
        """It waits no more: it has spoken, or is closed."""
        group, _ = self._waiting.pop(descriptor, ("", 0.0))
        if group:
            of_one = self._of[group]
            del of_one[descriptor]
            if not of_one:
                del self._of[group]

    def _ask(self, descriptor: int, question: Callable[[socket.socket], str | None]) -> str | None:
        """The answer of a connection that another thread may have closed.

        Then the number may be of another file by now, or of none.
        """
        try:
            end = socket.socket(self._family, socket.SOCK_STREAM, 0, fileno=descriptor)
        except OSError:
            return None
        try:
            return question(end)
        except (OSError, IndexError):  # IndexError: a Unix socket has no such address
            return None
        finally:
            end.detach()

    def _end(self, end: socket.socket) -> None:
        if end.getsockname()[1] == self._port:  # libzmq's thread notices, and closes it
            end.shutdown(socket.SHUT_RDWR)


def next_event(monitor: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """What happened next at a socket, and of ACCEPTED and CLOSED the descriptor; None if nothing did."""
    try:
        what, value = EVENT.unpack(monitor.recv_multipart(NOBLOCK)[0])
    except zmq.Again:
        return None
    return what, value


def _network(address: str) -> str:
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
