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
        self._waiting: dict[int, tuple[str, float]] = {}  # -> address, since; oldest first
        self._of: dict[str, dict[int, None]] = {}  # address -> descriptors, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def hear(self, what: int, descriptor: int, now: float) -> bool:
        """Take the news of ACCEPTED or CLOSED; whether one was ended to make room for this one."""
        if what == CLOSED:
            self.gone(descriptor)
        elif address := _peer_of(descriptor, self._port):
            oldest = self.come(descriptor, address, now)
            if oldest is not None:
                _shut(oldest, self._port)
                return True
        return False

    def come(self, descriptor: int, address: str, now: float) -> int | None:
        """A connection was accepted; the one that makes room for it, if one must."""
        self.gone(descriptor)
        while self._waiting and now - next(iter(self._waiting.values()))[1] > SURE_S:
            self.gone(next(iter(self._waiting)))
        group = _network(address)
        self._waiting[descriptor] = group, now
        of_one = self._of.setdefault(group, {})
        of_one[descriptor] = None
        crowd = of_one if len(of_one) > self.most_of_one else self._waiting
        if crowd is self._waiting and len(crowd) <= self.most:
            return None
        oldest = next(iter(crowd))
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


def next_event(monitor: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """What happened next at a socket, and of ACCEPTED and CLOSED the descriptor; None if nothing did."""
    try:
        what, value = EVENT.unpack(monitor.recv_multipart(NOBLOCK)[0])
    except zmq.Again:
        return None
    return what, value


def _peer_of(descriptor: int, port: int) -> str | None:
    """The address at the other end of a connection that was accepted at this port; None if it is not (any
    more) one of those: the number may be another file's by now."""
    try:
        end = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if end.family not in (socket.AF_INET, socket.AF_INET6) or end.getsockname()[1] != port:
            return None
        return str(end.getpeername()[0])
    except OSError:
        return None
    finally:
        end.detach()


def _shut(descriptor: int, port: int) -> None:
    """End such a connection; whose thread it is will notice, and close it."""
    if _peer_of(descriptor, port) is None:
        return
    end = socket.socket(fileno=descriptor)
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has just ended by itself
    finally:
        end.detach()


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
