"""Socket options by which dead TCP links are detected, and slow ones are not taken for dead.

The kernel detects them, as it counts bytes: it ends a link on which the other host has confirmed nothing for
SILENCE_MS, and probes an idle one once a second. ZeroMQ's own heartbeats are off. They count whole frames: a
frame that takes longer than their time limit makes them end the link, is sent anew, and never arrives. And
libzmq aborts the process when a heartbeat is due on a link that ended with a full queue (its issue 4364).
"""

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
