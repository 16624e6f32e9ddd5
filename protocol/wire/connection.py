"""A worker's end of the wire.

Invariants: every message of a session reaches the other side's callback once, in order, over any
reconnections; nothing that the controller sends raises here: it is reported to `on_fault`.
"""

import os
from collections.abc import Callable

import zmq

from protocol.errors import ConfigError, RemoteError
from protocol.messages import TO_WORKER, Message
from protocol.wire.codec import decode
from protocol.wire.frame_limits import (
    MAX_FRAME_FROM_WORKER,
    MAX_HEADER_TO_WORKER,
    TO_WORKER_LIMITS,
    check_sizes,
)
from protocol.wire.security import WorkerKey, secure_client
from protocol.wire.session import Session
from protocol.wire.sockets import LINKED, Conversation, DrainedSocket, Frames


class Connection(DrainedSocket):
    """A worker's end: one DEALER with a random routing id, so that a restarted process is a new peer.

    `on_message(message, frames)` gets every message that is new and in order, beats included;
    `on_fault(reason)` says that the controller broke the protocol; `on_refusal(what)` that a handshake
    failed: REFUSED, GARBLED or BROKEN of protocol.wire.sockets.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        on_message: Callable[[Message, Frames], None],
        on_fault: Callable[[str], None],
        on_refusal: Callable[[int], None] = lambda what: None,
        key: WorkerKey | None = None,
        resend_s: float = 60.0,
        is_ipv6: bool = False,
    ) -> None:
        """Connect, in the background. Raises: ConfigError if the endpoint is malformed.

        `is_ipv6`: whether a host that is given by its name is looked up as IPv6, and not as IPv4.
        """
        super().__init__(zmq.DEALER, is_ipv6=is_ipv6 or "[" in endpoint, limits=TO_WORKER_LIMITS)
        self._on_message = on_message
        self._on_fault, self._on_refusal = on_fault, on_refusal
        self._links = 0  # connections made so far
        self._conversation = Conversation(self._transmit, resend_s=resend_s)
        self.routing_id = b"\x01" + os.urandom(15)  # libzmq reserves a leading zero
        self._socket.setsockopt(zmq.ROUTING_ID, self.routing_id)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for a controller that is not there
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
        self._watch_handshakes(self._hear_news, also=LINKED)
        if key is not None:
            secure_client(self._socket, key)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"Connecting to {endpoint!r} failed: {error}. Give the address that the controller printed, "
                "for example tcp://127.0.0.1:29500, or its run directory."
            ) from None

    def send(self, message: Message, frames: Frames = ()) -> None:
        """Send in order, now or as soon as the controller takes the message.

        Raises: LocalError if a frame is larger than the controller accepts, or too many bytes or messages
        wait for it.
        """
        check_sizes(message, frames, MAX_FRAME_FROM_WORKER)
        self._conversation.send(message, frames)
        self._watch(self._conversation)
        self.kick()

    def unacknowledged(self) -> list[tuple[Message, Frames]]:
        """The messages, in order, that were sent and that the controller has not acknowledged."""
        return [(packet.message, packet.frames) for packet in self._conversation.session.resend()]

    def _hear_news(self, what: int) -> None:
        if what != LINKED:
            self._on_refusal(what)
            return
        self._links += 1
        if self._links > 1:
            self._conversation.relinked()
            self._watch(self._conversation)
            self.kick()

    def _sessions(self) -> list[Session]:
        return [self._conversation.session]

    def _take(self, frames: list[bytes], now: float) -> None:
        try:
            packet = decode(frames, header_bytes=MAX_HEADER_TO_WORKER)
            if type(packet.message) not in TO_WORKER:
                raise RemoteError(f"A controller must not say {type(packet.message).__name__}.")
        except RemoteError as error:
            self._on_fault(str(error))
            return
        if self._conversation.hear(packet, now):
            self._on_message(packet.message, packet.frames)
        self._watch(self._conversation)

    def _after_drain(self) -> None:
        pass
