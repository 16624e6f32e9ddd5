"""How a TCP link that carries nothing any more is noticed, and a slow one is not taken for it.

The kernel watches, which counts bytes: a link on which the other host has confirmed nothing for SILENCE_MS is
ended, and an idle one is asked once a second. ZeroMQ's own heartbeats are off. They count whole frames: under
one that is longer on its way than they are patient they end the link, it is sent anew, and never arrives. And
libzmq aborts the process when one is due on a link that has ended while its queue is full (its issue 4364).
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
