"""Chat requests as clients send them, answered on the connection itself; all else is the server's.

Invariants: a connection is here until its first request that is no plain one, and the server's from then on,
with every byte that was not answered; the requests of a connection are answered one after the other; what is
answered here is what the application would answer; a client that goes away takes nothing with it.
"""

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from uvicorn import Config
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from workers.agent.door import site
from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.site import ChatHead, ChatTaker, EpisodeLost
from workers.agent.policy import KEYED, UNTRAINED

MAX_HEAD_BYTES = 16 << 10
MAX_WAITING_BYTES = 64 << 10
"""Of what a client sends while it waits for its answer; then it is read no more until that is there."""
WHOLE_S = 1.0
"""For a request to be whole; then the server takes it, which has limits for slow ones."""
CHAT = re.compile(f"(?:/v1|({UNTRAINED})|{KEYED}/([A-Za-z0-9-]+)(?:/v1)?)/chat/completions".encode())
NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"trailer", b"te"))
LOOKED_AT = frozenset((
    b"authorization", b"connection", b"content-length", b"host", b"idempotency-key",
    b"x-stainless-retry-count",
))  # fmt: skip
TYPES = {True: "text/event-stream; charset=utf-8", False: "application/json"}
REASONS = {status.value: status.phrase for status in HTTPStatus}


class PlainHead(NamedTuple):
    """The head of a request that can be answered here."""

    chat: ChatHead
    body_bytes: int


def read_head(head: bytes) -> PlainHead | None:
    """What stands before the empty line of a request; None if it is no plain chat request."""
    if b"\0" in head or not head.count(b"\r") == head.count(b"\n") == head.count(b"\r\n"):
        return None
    first, *lines = head.split(b"\r\n")
    method, path, version, *more = [*first.split(b" "), b"", b"", b""][:4]
    place = CHAT.fullmatch(path)
    if place is None or (method, version) != (b"POST", b"HTTP/1.1") or any(more):
        return None
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name in NOT_PLAIN or name[-1:] in b" \t" or name[:1] in b" \t":
            return None
        if name in LOOKED_AT:
            if name in found:
                return None
            found[name] = value.strip(b" \t")
    length = found.get(b"content-length", b"")
    is_kept = found.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    if not (length.isdigit() and len(length) < 10 and is_kept and b"host" in found):
        return None
    untrained, key = place.groups()
    texts = {name: value.decode("latin-1") for name, value in found.items()}
    chat = ChatHead(
        key=None if key is None else key.decode(),
        authorization=texts.get(b"authorization", ""),
        is_untrained=untrained is not None,
        retry_count=texts.get(b"x-stainless-retry-count", "0"),
        idempotency_key=texts.get(b"idempotency-key", ""),
    )
    return PlainHead(chat, int(length))


def protocol_with(chat: ChatTaker) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes for each connection."""

    def make(config: Config, **options: Any) -> asyncio.Protocol:
        def rest() -> asyncio.Protocol:
            return cast("Callable[..., asyncio.Protocol]", AutoHTTPProtocol)(config, **options)

        return DoorLane(chat, rest, options["server_state"].connections)

    return make


class DoorLane(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, chat: ChatTaker, make_rest: Callable[[], asyncio.Protocol], connections: set[Any]
    ) -> None:
        """`make_rest`: what goes on with a connection; `connections`: those that the server closes."""
        self._chat, self._make_rest, self._connections = chat, make_rest, connections
        self._buffer = bytearray()
        self._head: PlainHead | None = None  # of the request that is coming
        self._begins = 0  # where its body does
        self._task: asyncio.Task[None] | None = None  # that answers
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    # -- as asyncio and uvicorn call it -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._connections.discard(self)
        self._set_timer(None)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """It has sent something."""
        self._buffer += data
        if self._task is None:
            self._go_on()
        elif len(self._buffer) > MAX_WAITING_BYTES:
            self._transport.pause_reading()

    def shutdown(self) -> None:
        """The door closes."""
        self._transport.close()

    # -----------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Answer the next request if it is whole; hand the connection on if it is no plain one."""
        if not self._buffer:
            return
        if self._head is None and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            self._head, self._begins = read_head(bytes(self._buffer[:end])), end + 4
            if self._head is None:
                self._hand_on()
                return
        if self._head is None:
            is_too_much = len(self._buffer) > MAX_HEAD_BYTES
        else:
            is_too_much = self._head.body_bytes > site.MAX_BODY_BYTES
            ends = self._begins + self._head.body_bytes
            if not is_too_much and len(self._buffer) >= ends:
                body, head = bytes(self._buffer[self._begins : ends]), self._head.chat
                del self._buffer[:ends]
                self._head = None
                self._set_timer(None)
                self._task = asyncio.get_running_loop().create_task(self._answer(head, body), name="chat")
                self._task.add_done_callback(self._answered)
                return
        if is_too_much:
            self._hand_on()
        elif self._timer is None:
            self._set_timer(WHOLE_S)

    def _hand_on(self) -> None:
        """The server has the connection from now on."""
        self._set_timer(None)
        self._connections.discard(self)
        rest, data, self._buffer = self._make_rest(), bytes(self._buffer), bytearray()
        self._transport.set_protocol(rest)
        rest.connection_made(self._transport)
        rest.data_received(data)

    def _set_timer(self, delay_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s is not None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._hand_on)

    async def _answer(self, head: ChatHead, body: bytes) -> None:
        try:
            question = self._chat.take(head, body)
            kind = TYPES[question.request.is_stream]
            whole = await site.at_once(question)
        except DoorRefusal as refusal:
            told = json.dumps(refusal.body).encode()
            self._write(refusal.status, TYPES[False], told, *map(": ".join, site.HEADERS.items()))
            return
        if whole is not None:
            self._write(200, kind, whole)
            return
        self._transport.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        async for part in site.slowly(question):
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        self._transport.write(b"0\r\n\r\n")

    def _write(self, status: int, kind: str, body: bytes, *headers: str) -> None:
        lines = (
            f"HTTP/1.1 {status} {REASONS[status]}",
            f"content-length: {len(body)}",
            f"content-type: {kind}",
        )
        self._transport.write("\r\n".join((*lines, *headers, "", "")).encode() + body)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._transport.is_closing():
            return
        if (error := task.exception()) is not None:
            self._transport.abort()
            if not isinstance(error, EpisodeLost):
                raise error  # to the handler of the event loop
            return
        self._transport.resume_reading()
        self._go_on()
