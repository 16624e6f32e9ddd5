"""Bounds how many connections may wait at a listening socket before they have shown a key.

Invariants: a connection waits from its acceptance to its first message, its end, or the time limit of libzmq
for a handshake; at most `most_of_one` connections from one address (one /64 network for IPv6) wait, and at
most `most` in all; beyond that, the oldest is closed for the newest. So an honest worker, whose handshake
takes milliseconds, gets in however many idle connections are held open beside it, and they never take the
descriptors that the run needs.
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
HANDSHAKE_S = 10.0  # then libzmq closes a connection whose handshake, three round trips, is not complete
SURE_S = HANDSHAKE_S + 1.0  # a connection that is open after so long has completed it


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
        """Take an event ACCEPTED or CLOSED; returns whether a connection was closed to make room."""
        if what == CLOSED:
            self.gone(descriptor)
            return False
        address = self._ask(descriptor, lambda end: end.getpeername()[0])
        oldest = self.come(descriptor, address, now) if address else None
        if oldest is not None:
            self._ask(oldest, self._end)
        return oldest is not None

    def come(self, descriptor: int, address: str, now: float) -> int | None:
        """Note an accepted connection; returns the one that has to be closed for it, if any."""
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
        """Note that a connection no longer waits: it has sent a message, or is closed."""
        group, _ = self._waiting.pop(descriptor, ("", 0.0))
        if group:
            of_one = self._of[group]
            del of_one[descriptor]
            if not of_one:
                del self._of[group]

    def _ask(self, descriptor: int, question: Callable[[socket.socket], str | None]) -> str | None:
        """Query a connection that another thread may have closed.

        Its descriptor may belong to another file by now, or to none.
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
    """The next event of a socket, with the descriptor for ACCEPTED and CLOSED; None if there is none."""
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
