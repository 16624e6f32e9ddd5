"""Socket options by which dead TCP links are detected, and slow ones are not taken for dead.

The kernel detects them, as it counts bytes: it ends a link on which the other host has confirmed nothing for
SILENCE_MS, and probes an idle one once a second. ZeroMQ's own heartbeats are off. They count whole frames: a
frame that takes longer than their time limit makes them end the link, is sent anew, and never arrives. And
libzmq aborts the process when a heartbeat is due on a link that ended with a full queue (its issue 4364).
"""

import socket
import struct
import sys

import zmq

SILENCE_MS = 3000
ASK_S = 1

OPTIONS = (
    (zmq.TCP_MAXRT, SILENCE_MS),  # TCP_USER_TIMEOUT of Linux
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, ASK_S),
    (zmq.TCP_KEEPALIVE_INTVL, ASK_S),
    (zmq.TCP_KEEPALIVE_CNT, SILENCE_MS // (1000 * ASK_S)),
)
"""Of a socket, before it binds or connects."""
_ARRIVED = struct.Struct("=128xQ")  # tcpi_bytes_received in Linux's struct tcp_info


def arrived_bytes(descriptor: int) -> int:
    """Bytes that have come over a TCP connection, those of messages that are not whole yet included.

    0 where the system does not say, or once the connection is closed.
    """
    if sys.platform != "linux" or descriptor < 0:
        return 0
    try:
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return 0
    try:
        return int(_ARRIVED.unpack(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ARRIVED.size))[0])
    except (OSError, struct.error):  # another thread has closed it, and a file may have its number now
        return 0
    finally:
        end.detach()
