"""The two ends of the wire: `Server` for the controller, `Connection` for a worker.

Invariants:
- Every message of a session reaches the other side's callback once, in order, over any reconnections.
- Nothing that a peer sends raises here: it is reported to `on_fault`, that peer is dropped, the others go on.
- No acknowledgement leaves between `on_message` and the end of `on_drained`, so the owner can make a whole
  drain durable before any peer believes that it is.
"""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import zmq

from protocol.codec import Packet, decode, encode
from protocol.endpoints import check_endpoint
from protocol.errors import ConfigError, LocalError, RemoteError
from protocol.ids import PeerId
from protocol.messages import FROM_WORKER, TO_WORKER, Attach, Beat, Close, Message
from protocol.session import Session
from protocol.sockets import Conversation, DrainedSocket, Frames

MAX_FRAME_FROM_WORKER = 64 << 20  # a report of 256 responses of 32k tokens is 32 MiB
MAX_FRAME_TO_WORKER = 2 << 30  # the tokens of a whole batch travel to the trainer as one frame
GONE_PEERS = 4096  # dead conversations remembered, to tell late speakers that they are over


class _Peer(Conversation):
    """One worker process, as the server knows it."""

    def __init__(self, id: PeerId, transmit: Callable[[list[bytes]], None], *, resend_s: float) -> None:
        super().__init__(transmit, resend_s=resend_s)
        self.id = id


class Server(DrainedSocket):
    """The controller's end: any number of workers on one ROUTER socket.

    `on_message(peer, message, frames)` gets every message that is new and in order, beats included, first of
    each peer its Attach; `on_fault(peer, reason)` says that a peer broke the protocol or stopped reading and
    was dropped; `on_drained()` is called after the last of either, once per drain. Callbacks must not raise.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        on_message: Callable[[PeerId, Message, Frames], None],
        on_fault: Callable[[PeerId, str], None],
        on_drained: Callable[[], None] | None = None,
        resend_s: float = 5.0,
    ) -> None:
        """Binds. Raises: ConfigError if the endpoint cannot or must not be bound."""
        check_endpoint(endpoint)
        super().__init__(zmq.ROUTER, endpoint, max_frame_bytes=MAX_FRAME_FROM_WORKER)
        self._on_message = on_message
        self._on_fault = on_fault
        self._on_drained = on_drained
        self._resend_s = resend_s
        self._peers: dict[bytes, _Peer] = {}
        self._gone: OrderedDict[bytes, Close] = OrderedDict()
        self._faults: list[tuple[PeerId, str]] = []
        self._answers: dict[bytes, None] = {}  # peers whose beat waits for one in return
        self._has_news = False
        self._socket.setsockopt(
            zmq.ROUTER_MANDATORY, 1
        )  # a send to a full or absent peer fails, not vanishes
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            super().close()
            raise ConfigError(
                f"Binding {endpoint} failed: {error}. Choose another address in `controller.bind`, or stop "
                "the program that holds this one."
            ) from None
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self, *, linger_ms: int = 0) -> None:
        """Free the socket, and the file of a Unix socket, which libzmq leaves behind."""
        if not self._socket.closed and self.endpoint.startswith("ipc://"):
            Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        super().close(linger_ms=linger_ms)

    def send(self, peer: PeerId, message: Message, frames: Frames = ()) -> None:
        """Send in order, now or as soon as the peer takes it. A peer that is gone is ignored.

        Raises: LocalError if a frame is larger than a worker accepts.
        """
        found = self._peers.get(bytes.fromhex(peer))
        if found is None:
            return
        _check_sizes(message, frames, MAX_FRAME_TO_WORKER)
        try:
            found.send(message, frames)
        except LocalError as error:
            self._drop(bytes.fromhex(peer), str(error))
        else:
            self._watch(found)
        self.kick()

    def forget(self, peer: PeerId) -> None:
        """End the conversation; whatever the peer still says is answered by Close."""
        reason = (
            "The controller has given this worker up: it was closed, or silent for longer than its lease."
        )
        self._end(bytes.fromhex(peer), Close(reason, False))

    def _sessions(self) -> list[Session]:
        return [peer.session for peer in self._peers.values()]

    def _take(self, frames: list[bytes], now: float) -> None:
        routing_id = frames[0]
        if routing_id in self._gone:
            self._say_close(routing_id)
            return
        try:
            packet = decode(frames[1:])
            peer = self._peers.get(routing_id) or self._admit(routing_id, packet)
            if type(packet.message) not in FROM_WORKER or (
                type(packet.message) is Attach and packet.sequence != 1
            ):
                raise RemoteError(f"A worker must not say {type(packet.message).__name__} here.")
        except RemoteError as error:
            self._drop(routing_id, str(error))
            return
        if peer.hear(packet, now):
            self._has_news = True
            self._on_message(peer.id, packet.message, packet.frames)
        if packet.sequence == 0:
            self._answers[routing_id] = None
        if peer.backlog:
            self._watch(peer)

    def _admit(self, routing_id: bytes, packet: Packet) -> _Peer:
        if type(packet.message) is not Attach or packet.sequence != 1:
            raise RemoteError(
                f"The first message is {type(packet.message).__name__} number {packet.sequence}; expected "
                "Attach, number 1. The worker belongs to an earlier controller: start it again."
            )
        peer = _Peer(
            routing_id.hex(), lambda frames: self._transmit([routing_id, *frames]), resend_s=self._resend_s
        )
        self._peers[routing_id] = peer
        return peer

    def _drop(self, routing_id: bytes, reason: str) -> None:
        self._end(routing_id, Close(reason, True))
        self._faults.append((routing_id.hex(), reason))
        self._say_close(routing_id)

    def _end(self, routing_id: bytes, close: Close) -> None:
        peer = self._peers.pop(routing_id, None)
        if peer is not None:
            self._blocked.pop(peer, None)
        self._gone[routing_id] = close
        if len(self._gone) > GONE_PEERS:
            self._gone.popitem(last=False)

    def _say_close(self, routing_id: bytes) -> None:
        """Outside the order (sequence 0): the session that would number it is gone."""
        with contextlib.suppress(zmq.ZMQError):  # full or absent: it hears this when it speaks again
            self._transmit([routing_id, *encode(Packet(0, 0, self._gone[routing_id], ()))])

    def _after_drain(self) -> None:
        while self._faults:
            self._has_news = True
            faults, self._faults = self._faults, []
            for id, reason in faults:
                self._on_fault(id, reason)
        if self._has_news and self._on_drained is not None:
            self._on_drained()
        self._has_news = False
        answers, self._answers = self._answers, {}
        for routing_id in answers:
            peer = self._peers.get(routing_id)
            if peer is not None and not self._socket.closed:
                peer.send(Beat(), ())


class Connection(DrainedSocket):
    """A worker's end: one DEALER under a random routing id, so that a restarted process is another peer.

    `on_message(message, frames)` gets every message that is new and in order, beats included;
    `on_fault(reason)` says that the controller broke the protocol.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        on_message: Callable[[Message, Frames], None],
        on_fault: Callable[[str], None],
        resend_s: float = 5.0,
    ) -> None:
        """Connects, in the background. Raises: ConfigError if the endpoint is malformed."""
        super().__init__(zmq.DEALER, endpoint, max_frame_bytes=MAX_FRAME_TO_WORKER)
        self._on_message = on_message
        self._on_fault = on_fault
        self._conversation = Conversation(self._transmit, resend_s=resend_s)
        self.routing_id = b"\x01" + os.urandom(15)  # libzmq reserves a leading zero
        self._socket.setsockopt(zmq.ROUTING_ID, self.routing_id)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for a controller that is not there
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5000)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"Connecting to {endpoint!r} failed: {error}. Give the address that the controller printed, "
                "for example tcp://127.0.0.1:29500, or its run directory."
            ) from None

    def send(self, message: Message, frames: Frames = ()) -> None:
        """Send in order, now or as soon as the controller takes it.

        Raises: LocalError if a frame is larger than the controller accepts, or too much waits for it.
        """
        _check_sizes(message, frames, MAX_FRAME_FROM_WORKER)
        self._conversation.send(message, frames)
        self._watch(self._conversation)
        self.kick()

    def _sessions(self) -> list[Session]:
        return [self._conversation.session]

    def _take(self, frames: list[bytes], now: float) -> None:
        try:
            packet = decode(frames)
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


def _check_sizes(message: Message, frames: Frames, limit: int) -> None:
    for frame in frames:
        if len(frame) > limit:
            raise LocalError(
                f"A frame of {type(message).__name__} has {len(frame)} bytes; the other side accepts "
                f"{limit}. Send less at a time."
            )
