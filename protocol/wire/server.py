"""The controller's end of the wire.

Invariants:
- Every message of a session reaches the other side's callback once, in order, over any reconnections.
- Nothing that a peer sends raises here: it is reported to `on_fault`, that peer is dropped, the others go on.
  Faults of connections that never attached go to `on_refusal` instead, the 1st, 10th, 100th... of each kind.
- With keys, a peer is identified by its key: it has the role and name of the key, and its messages count only
  from connections that have shown the key.
- The newest connection of a peer takes over from those before: libzmq would ignore one that comes while
  messages of the one before wait to be read. Nobody else can make one: its routing id is 120 random bits,
  which only it and the controller know.
- No acknowledgement leaves between `on_message` and the end of `on_drained`, so the owner can make a whole
  drain durable before any peer believes that it is.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import zmq

from protocol.errors import ConfigError, LocalError, RemoteError
from protocol.ids import PeerId
from protocol.messages import (
    FROM_WORKER,
    Attach,
    Beat,
    Close,
    Control,
    DrainWorker,
    Message,
    Reattach,
    Relinked,
    Role,
)
from protocol.plain_text import plain_line
from protocol.wire.codec import Packet, decode, encode
from protocol.wire.endpoints import check_endpoint, local_form
from protocol.wire.frame_limits import (
    FROM_WORKER_LIMITS,
    MAX_FRAME_TO_WORKER,
    check_sizes,
)
from protocol.wire.porter import ACCEPTED, CLOSED
from protocol.wire.security import OWN_KEY, CurveAuthenticator, Grant, Keyring, secure_server
from protocol.wire.session import Session
from protocol.wire.sockets import PAUSE_S, REFUSED, Conversation, DrainedSocket, Frames

GONE_PEERS = 4096  # ended conversations remembered, to tell peers that still send that theirs has ended
REVIEW_S = 1.0  # between two looks at the folder of keys for revoked ones
NO_KEY = "a connection that has shown no key: a worker without, with another controller's, or none at all."
CROWD = "more connections without a key than may wait at once: the oldest makes room for the next."
REFUSALS = 1024  # kinds of refusal remembered, to say each only once

log = logging.getLogger("staleflow.controller")


class _Peer(Conversation):
    """One worker process, as the server knows it."""

    def __init__(
        self,
        id: PeerId,
        transmit: Callable[[list[bytes]], None],
        *,
        resend_s: float,
        user: str,
        role: Role | None,
    ) -> None:
        super().__init__(transmit, resend_s=resend_s)
        self.id = id
        self.user = user  # public key; "" on a socket without keys
        self.role: Role | None = role  # None: an operator
        self.farewell: Close | Reattach = Reattach()


class Server(DrainedSocket):
    """The controller's end: any number of workers on one ROUTER socket.

    `on_message(peer, message, frames)` gets every message that is new and in order, beats included, first of
    each peer its Attach; `on_fault(peer, reason)` says that a peer broke the protocol or stopped reading and
    was dropped; `on_drained()` is called after the last of either, once per drain. `on_refusal(text)` is
    called for refused connections, at the 1st, 10th, 100th... of each kind. Callbacks must not raise.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        on_message: Callable[[PeerId, Message, Frames], None],
        on_fault: Callable[[PeerId, str], None],
        on_drained: Callable[[], None] | None = None,
        on_refusal: Callable[[str], None] = log.warning,
        keys: Keyring | None = None,
        strangers: int = 1024,
        resend_s: float = 60.0,
    ) -> None:
        """Bind, with room for so many `strangers`. Raises: ConfigError if that fails, or is not safe."""
        check_endpoint(endpoint, has_keys=keys is not None)
        super().__init__(zmq.ROUTER, is_ipv6="[" in endpoint, limits=FROM_WORKER_LIMITS)
        self._pause_s = PAUSE_S
        self._on_message, self._on_fault = on_message, on_fault
        self._on_drained = on_drained
        self._resend_s = resend_s
        self._peers: dict[bytes, _Peer] = {}
        self._gone: OrderedDict[bytes, Packet] = OrderedDict()
        self._on_refusal = on_refusal
        self._refusals: OrderedDict[str, int] = OrderedDict()
        self.vocabulary: int | None = None
        """Tokens that the model knows, once that is known: a worker that speaks of others is dropped."""
        self._keys = keys
        self._door: CurveAuthenticator | None = None
        self._review_timer: asyncio.TimerHandle | None = None
        self._reviewed = 0  # reads of the folder of keys, as of the last look at the sessions
        self._faults: list[tuple[PeerId, str]] = []
        self._answers: dict[bytes, None] = {}  # peers whose beat has not been answered yet
        self._has_news = False
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a full or absent peer fails
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # else a new link may never be heard (see above)
        if keys is not None:
            self._door = CurveAuthenticator(self._context, admits=self._admits, on_refusal=self._refuse)
            self._carries_users = True
            secure_server(self._socket, keys.server.secret)
        self._watch_handshakes(self._refuse_handshake, also=ACCEPTED | CLOSED)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.endpoint = ""
            self.close()
            cure = "Choose another address in `controller.bind`, or stop the program that holds this one."
            raise ConfigError(f"Binding {endpoint} failed: {error}. {cure}") from None
        self.endpoint: str = local_form(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
        """Where processes of this machine attach."""
        if self.endpoint.startswith("tcp://"):
            self._guard(self.endpoint, strangers, on_crowd=lambda: self._refuse(CROWD))

    def start(self) -> None:
        """Begin to receive, in the running loop."""
        super().start()
        if self._door is not None:
            self._door.start()
            self._review()

    def close(self, *, linger_ms: int = 0) -> None:
        """Free the socket, and the file of a Unix socket, which libzmq leaves behind."""
        if not self._socket.closed and self.endpoint.startswith("ipc://"):
            with contextlib.suppress(OSError):  # of a disk that refuses; the next controller removes it
                Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._review_timer is not None:
            self._review_timer.cancel()
        if self._door is not None:
            self._door.close()
        super().close(linger_ms=linger_ms)

    def send(self, peer: PeerId, message: Message, frames: Frames = ()) -> None:
        """Send in order, now or as soon as the peer takes it. A peer that is gone is ignored.

        Raises: LocalError if a frame is larger than a worker accepts.
        """
        found = self._peers.get(bytes.fromhex(peer))
        if found is None:
            return
        check_sizes(message, frames, MAX_FRAME_TO_WORKER)
        if isinstance(message, Close):
            found.farewell = message
        try:
            found.send(message, frames)
        except LocalError as error:
            self._drop(bytes.fromhex(peer), str(error))
        else:
            self._watch(found)
        self.kick()

    def forget(self, peer: PeerId) -> None:
        """End the conversation with a peer.

        Whatever the peer still sends is answered with the message that closed it; a peer that was only silent
        for too long may attach again.
        """
        found = self._peers.get(bytes.fromhex(peer))
        if found is not None:
            self._end(found)
            self._say_goodbye(bytes.fromhex(peer))
            self.kick()

    def role_of(self, peer: PeerId) -> Role | None:
        """The role in which a peer has attached; None for one that is gone, or an operator."""
        found = self._peers.get(bytes.fromhex(peer))
        return found.role if found is not None else None

    def _sessions(self) -> list[Session]:
        return [peer.session for peer in self._peers.values()]

    def _take(self, frames: list[bytes], now: float) -> None:
        routing_id = frames[0]
        if routing_id in self._gone:
            self._say_goodbye(routing_id)
            return
        peer = self._peers.get(routing_id)
        if peer is not None and peer.user != self._user:
            self._refuse("words of a worker over a connection with another key.")
            return
        try:
            packet = decode(frames[1:], vocabulary=self.vocabulary)
            if type(packet.message) not in FROM_WORKER or (
                type(packet.message) is Attach and packet.sequence != 1
            ):
                raise RemoteError(f"A worker must not say {type(packet.message).__name__} here.")
            if (
                peer is not None
                and peer.role is not None
                and isinstance(packet.message, DrainWorker | Control)
            ):
                raise RemoteError(f"A {peer.role} worker must not say {type(packet.message).__name__}.")
            if peer is None:
                peer, packet = self._admit(routing_id, packet)
        except RemoteError as error:
            self._drop(routing_id, str(error))
            return
        if peer is None:
            return
        if peer.hear(packet, now):
            self._has_news = True
            message = Beat() if isinstance(packet.message, Relinked) else packet.message
            self._on_message(peer.id, message, packet.frames)
        if packet.sequence == 0:
            self._answers[routing_id] = None
        if peer.backlog:
            self._watch(peer)

    def _admit(self, routing_id: bytes, packet: Packet) -> tuple[_Peer | None, Packet]:
        """Admit a new peer, if its first message is Attach or an operator's, and its key allows that."""
        attach = packet.message
        if isinstance(attach, DrainWorker | Control):
            if self._keys is not None and self._user != self._keys.local.public:
                raise RemoteError("Only whoever may read the run directory may give orders; name that.")
            return self._make_peer(routing_id, None), packet
        if not isinstance(attach, Attach):  # it attached to a controller before this one
            self._remember(routing_id, Reattach())
            self._say_goodbye(routing_id)
            return None, packet
        if self._keys is not None:
            grant = self._keys.grant(self._user)
            if grant is None or attach.role not in grant.roles:
                allowed = f"{grant.name!r} is for {', '.join(grant.roles)}" if grant else "was revoked"
                reason = f"The key {allowed}; the worker attached as {attach.role}."
                self._refuse(reason)
                cure = f"{reason} Attach as what it is for, or make another: launch.py keygen."
                self._remember(routing_id, Close(cure, True))
                self._say_goodbye(routing_id)
                return None, packet
            packet = packet._replace(message=replace(attach, name=_name_by_key(grant, attach.name)))
        return self._make_peer(routing_id, attach.role), packet

    def _make_peer(self, routing_id: bytes, role: Role | None) -> _Peer:
        peer = self._peers[routing_id] = _Peer(
            routing_id.hex(), lambda frames: self._transmit([routing_id, *frames]),
            resend_s=self._resend_s, user=self._user, role=role,
        )  # fmt: skip
        return peer

    def _admits(self, public: str) -> bool:
        assert self._keys is not None
        return self._keys.grant(public) is not None

    def _review(self) -> None:
        """Drop the peers whose keys were revoked; runs every REVIEW_S."""
        assert self._keys is not None
        assert self._loop is not None
        self._review_timer = self._loop.call_later(REVIEW_S, self._review)  # also if this look fails
        self._keys.refresh()
        folder = self._keys.folder
        if problem := folder.untold():
            self._on_refusal(plain_line(problem))
        if folder.reads != self._reviewed:
            self._reviewed = folder.reads
            for routing_id, peer in list(self._peers.items()):
                grant = self._keys.grant(peer.user)
                if grant is None or (peer.role is not None and peer.role not in grant.roles):
                    self._drop(routing_id, folder.lost or "Its key was revoked.")
                    self.kick()

    def _refuse(self, what: str, example: str = "") -> None:
        """Report a refusal, if it is the 1st, 10th, 100th... of its kind."""
        count = self._refusals.pop(what, 0) + 1
        self._refusals[what] = count
        if len(self._refusals) > REFUSALS:
            self._refusals.popitem(last=False)
        if count == 10 ** (len(str(count)) - 1):
            times = f" ({count} times)" if count > 1 else ""
            self._on_refusal(plain_line(f"Refused at {self.endpoint}{times}: {what}{example}"))

    def _refuse_handshake(self, what: int) -> None:
        if what != REFUSED and self._keys is not None:  # the authenticator has reported that already
            self._refuse(NO_KEY)

    def _drop(self, routing_id: bytes, reason: str) -> None:
        """Drop a connection that broke the protocol; report a fault only if it had attached."""
        peer = self._peers.get(routing_id)
        if peer is None:
            self._remember(routing_id, Close(reason, True))
            self._refuse("a peer that never attached.", f" It said: {reason[:300]}")
        else:
            peer.farewell = Close(reason, True)
            self._end(peer)
            self._faults.append((peer.id, reason))
        self._say_goodbye(routing_id)

    def _end(self, peer: _Peer) -> None:
        routing_id = bytes.fromhex(peer.id)
        self._peers.pop(routing_id, None)
        self._blocked.pop(peer, None)
        self._remember(routing_id, peer.farewell, ack=peer.session.received)

    def _remember(self, routing_id: bytes, farewell: Close | Reattach, *, ack: int = 0) -> None:
        """Keep the last message to a peer; its sequence is 0, as the session that would number it is gone."""
        self._gone[routing_id] = Packet(0, ack, farewell, ())
        if len(self._gone) > GONE_PEERS:
            self._gone.popitem(last=False)

    def _say_goodbye(self, routing_id: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # full or absent: it hears this when it speaks again
            self._transmit([routing_id, *encode(self._gone[routing_id])])

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


def _name_by_key(grant: Grant, claimed: str) -> str:
    """Name a worker after its key; the name that it gives tells apart workers with the same key."""
    if grant.name in (OWN_KEY, claimed):
        return claimed
    return f"{grant.name}/{claimed}"[:200]
