"""How a TCP link that carries nothing any more is noticed, and a slow one is not taken for it.

ZeroMQ's own heartbeats count whole frames: under one that is longer on its way than they are patient they end
the link; it is sent anew, and never arrives. So the kernel watches, which counts bytes: a link on which the
other host has confirmed nothing for SILENCE_MS is ended. The heartbeats stay, so that an idle link has
something to confirm; their own patience is for systems whose kernel cannot be asked.
"""

import zmq

SILENCE_MS = 3000
HEARTBEAT_MS = 1000
LAST_RESORT_MS = 600_000

OPTIONS = (
    (zmq.TCP_MAXRT, SILENCE_MS),  # TCP_USER_TIMEOUT of Linux
    (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
    (zmq.HEARTBEAT_TIMEOUT, LAST_RESORT_MS),
    (zmq.TCP_KEEPALIVE, 1),
)
"""Of a socket, before it binds or connects."""
