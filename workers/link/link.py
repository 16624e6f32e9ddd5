"""A worker's link to the controller: attaches, sends and receives messages, beats, and leaves.

Invariants: beats are sent by the event loop that does the work, so a hung worker falls silent, and nothing
else stops them; neither end is silent for longer than a beat: after a message no beat is needed; a controller
that is silent for the lease ends the link, but a stall of this process is not counted; once the link is
closed, every call raises LinkClosed with the reason. The inbox is bounded by the work that the controller
leaves outstanding.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from pydantic import ValidationError

from protocol.errors import ConfigError, NoAnswer, RunError, StaleFlowError
from protocol.ids import PeerId
from protocol.messages import MAY_HEAR, Attach, Beat, Close, Drain, Message, Reattach, Role, Welcome
from protocol.settings import WorkerSettings, load_settings
from protocol.wire.connection import Connection
from protocol.wire.endpoints import find_endpoint, has_ipv6_alone, unknown_host
from protocol.wire.security import OWN_KEY, ServerKey, WorkerKey, load_worker_key
from protocol.wire.sockets import GARBLED, REFUSED, Frames
from workers.link.machine_use import machine_use

logger = logging.getLogger("workers")

LINGER_MS = 500  # for the last acknowledgement to reach the wire
MEASURE_S = 10.0  # between two measurements of this process's use of its machine
BROKEN_HANDSHAKES = 3  # in a row: no controller that knows this worker, rather than one that starts


class LinkClosed(StaleFlowError):
    """The link is closed. After a fault the worker must not go on, unless it may attach again."""

    def __init__(self, reason: str, is_fault: bool, *, may_reattach: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fault = is_fault
        self.may_reattach = may_reattach


class Link:
    """The worker's end of a link. Made by `attach`."""

    settings: WorkerSettings
    lease_s = 0.0
    """Silence after which each end considers the other gone; 0 before the Welcome."""

    def __init__(
        self, endpoint: str, role: Role, key: WorkerKey | None = None, *, is_ipv6: bool = False
    ) -> None:
        self._role: Role = role
        self.arrived = asyncio.Event()
        """Set while a message waits, once the link is closed, and by `wake`."""
        self.on_drain: Callable[[], None] = lambda: None
        """Called when the controller asks this worker to leave."""
        self._inbox: deque[tuple[Message, Frames]] = deque()
        self._closed: LinkClosed | None = None
        self._failure: RunError | None = None
        self._connection = Connection(
            endpoint, on_message=self._take, on_fault=self._blame, on_refusal=self._refused, key=key,
            is_ipv6=is_ipv6,
        )  # fmt: skip
        self._key = key
        self.endpoint = endpoint
        """The controller's endpoint."""
        self.weights_key: ServerKey | None = None
        """Of the run's weights channel; None if that has no key."""
        self._broken_handshakes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.name = ""  # this worker's name at the controller
        self._beat_s = 0.0
        self._heard_at = self._said_at = self._beaten_at = self._due_at = asyncio.get_running_loop().time()
        self._measured_at = -MEASURE_S

    @classmethod
    async def attach(
        cls, address: str, attach: Attach, *, key: str | None = None, limit_s: float = 60.0
    ) -> "Link":
        """A link that the controller has welcomed.

        `address` is an endpoint, or a run directory that holds a file `address`; `key` is a key file, needed
        if the controller has keys, unless the run directory holds one.

        Raises: NoAnswer if no controller answers; ConfigError if the controller refuses; LinkClosed if its
        run is over.
        """
        endpoint, local_key = find_endpoint(address)
        file = key or local_key
        shown = load_worker_key(file) if file else None
        link = cls(endpoint, attach.role, shown, is_ipv6=await has_ipv6_alone(endpoint))
        try:
            link._connection.start()
            link.send(attach)
            async with asyncio.timeout(limit_s):
                message, _ = await link.receive()
            if not isinstance(message, Welcome):
                raise ConfigError(
                    f"The controller at {address} answered Attach with {type(message).__name__}; expected "
                    "Welcome. Install the same release on both sides."
                )
            link._begin(message)
        except BaseException as error:
            await link.aclose()
            if isinstance(error, TimeoutError):
                why = await unknown_host(endpoint) or "Is the run alive?"
                raise NoAnswer(
                    f"No controller answered at {address} within {limit_s:g} s. {why} Give the address that "
                    "it printed, or its run directory."
                ) from None
            if isinstance(error, LinkClosed) and error.may_reattach:
                raise NoAnswer(f"Attaching at {address} failed: {error}") from None
            if isinstance(error, LinkClosed) and error.is_fault:
                raise ConfigError(f"The controller at {address} refused this worker: {error}") from None
            raise
        return link

    def send(self, message: Message, *frames: bytes) -> None:
        """Send in order. Raises: LocalError if a frame is too large or the controller has stopped reading."""
        self._connection.send(message, frames)
        self._said_at = asyncio.get_running_loop().time()

    async def receive(self) -> tuple[Message, Frames]:
        """The next message. Raises: LinkClosed; the error passed to `fail`."""
        while (item := self.receive_nowait()) is None:
            await self.arrived.wait()
        return item

    def receive_nowait(self) -> tuple[Message, Frames] | None:
        """The next message, or None, which also clears `arrived`. Raises: as `receive`."""
        if self._failure is not None:
            raise self._failure
        if self._inbox:
            return self._inbox.popleft()
        if self._closed is not None:
            raise self._closed
        self.arrived.clear()
        return None

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed."""
        return self._closed is not None

    @property
    def peer(self) -> PeerId:
        """This worker's id at the controller."""
        return self._connection.routing_id.hex()

    def unacknowledged(self) -> list[tuple[Message, Frames]]:
        """Sent messages, in order, that the controller may not have kept."""
        return self._connection.unacknowledged()

    def wake(self) -> None:
        """Wake the tasks that wait for `arrived`."""
        self.arrived.set()

    def cut(self, reason: str) -> None:
        """Close the link: the controller is known to be gone before its silence shows it."""
        self._close(LinkClosed(reason, True, may_reattach=True))

    def fail(self, error: RunError) -> None:
        """Raise this error in the receiving task; sending is still possible."""
        self._failure = error
        self.arrived.set()

    async def flush(self, limit_s: float) -> bool:
        """Whether the controller acknowledges everything sent, within `limit_s` seconds."""
        self.send(Beat())  # its answer carries the acknowledgement
        return await self._connection.flush(limit_s)

    async def aclose(self) -> None:
        """Stop beating and free the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._close(LinkClosed("This worker has closed its link.", False))
        self._connection.close(linger_ms=LINGER_MS)

    def _begin(self, welcome: Welcome) -> None:
        try:
            self.settings = load_settings(welcome.settings)
        except ValidationError as error:
            raise ConfigError(
                f"The controller's settings do not fit this worker: {error.errors()[0]['msg']} at "
                f"{error.errors()[0]['loc']}. Install the same release on both sides."
            ) from None
        if welcome.weights_key:
            self.weights_key = ServerKey.model_validate_json(welcome.weights_key)
        self.name = welcome.name
        self._beat_s, self.lease_s = welcome.beat_s, welcome.lease_s
        loop = asyncio.get_running_loop()
        self._beaten_at = loop.time()
        self._set_timer(self._beaten_at + self._beat_s)

    def _set_timer(self, due_at: float) -> None:
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_at(due_at, self._beat)

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        late_s = now - self._due_at
        if late_s > self._beat_s:
            # this process stood still: what came meanwhile may wait to be read; what was read since is of now
            self._heard_at = min(now, self._heard_at + late_s)
        silent_s = now - self._heard_at
        if silent_s > self.lease_s:
            self._close(
                LinkClosed(
                    f"The controller has been silent for {silent_s:.1f} s; expected a sign of life every "
                    f"{self._beat_s:g} s. It is gone or unreachable.",
                    True,
                    may_reattach=True,
                )
            )
            return
        due_at = max(self._beaten_at, min(self._said_at, self._heard_at)) + self._beat_s
        if due_at > now and now - self._measured_at < MEASURE_S:
            self._set_timer(due_at)
            return
        self._beaten_at = now
        self._set_timer(now + self._beat_s)  # first: what follows may raise
        self._connection.send(self._sign_of_life(now))

    def _sign_of_life(self, now: float) -> Message:
        if now - self._measured_at < MEASURE_S:
            return Beat()
        self._measured_at = now
        try:
            return machine_use()
        except Exception as error:  # whatever the driver of a device says, this worker is alive
            logger.warning("What this process takes of its machine cannot be measured now: %s", error)
            return Beat()

    def _take(self, message: Message, frames: Frames) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if isinstance(message, Close):
            self._connection.send(Beat())  # carries the acknowledgement that lets the controller end
            self._close(LinkClosed(message.reason, message.is_fault))
        elif isinstance(message, Reattach):
            text = "The controller does not know this worker any more: it was started again, or gave it up."
            self._close(LinkClosed(text, False, may_reattach=True))
        elif isinstance(message, Drain):
            self.on_drain()
        elif isinstance(message, Beat):
            pass
        elif type(message) in MAY_HEAR[self._role]:
            self._inbox.append((message, frames))
            self.arrived.set()
        else:
            self._blame(f"{type(message).__name__} is not for a {self._role} worker.")

    def _blame(self, reason: str) -> None:
        self._close(LinkClosed(f"The controller broke the protocol: {reason}", True))

    def _refused(self, what: int) -> None:
        """Handle a failed handshake. Once attached, only the lease matters."""
        if self.lease_s:
            return
        may_reattach = what == REFUSED and self._key is not None and self._key.name == OWN_KEY
        if may_reattach:
            text = (
                "this key is not, or no longer, the run's own: each start of its controller makes a new one. "
                "Attach by the run directory, or with a key of launch.py keygen."
            )
        elif what == REFUSED and self._key is not None:
            text = (
                f"the key {self._key.name!r} is unknown there, or was revoked. Ask for a new one: "
                "launch.py keygen."
            )
        elif what == GARBLED and self._key is None:
            text = "it asks for a key. Give the file that `launch.py keygen` made: --key FILE."
        elif what == GARBLED:
            text = "it has no keys, and this worker was given one. Leave --key out, or check the address."
        else:
            self._broken_handshakes += 1
            if self._broken_handshakes == BROKEN_HANDSHAKES:
                known = (
                    f"has another key than the one in that of {self._key.name!r}, or none"
                    if self._key
                    else "asks for a key (--key FILE), or is none of ours"
                )
                text = (
                    "the connection is closed during the handshake. Either a tunnel or proxy there reaches "
                    f"no controller, because none runs at its far end, or the controller {known}."
                )
                self._close(LinkClosed(text, True, may_reattach=True))
            return
        self._close(LinkClosed(text, True, may_reattach=may_reattach))

    def _close(self, closed: LinkClosed) -> None:
        if self._closed is None:
            self._closed = closed
        self.arrived.set()
