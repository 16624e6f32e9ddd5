"""A process beside a worker that pulls versions from other hosts and serves them to others.

Invariants: it shares only a folder with the engine, so neither pulling nor serving holds up a decode step; it
serves the chunks of a version that it is still receiving; it keeps nothing in memory but chunks on their way,
one window per reader, and deltas, of which each is made once, against the version that a reader named; it
ends when its worker ends, for whatever reason. Its standard input brings Orders, then one JSON object per
line (`{"pull": ...}`, `{"retire": ...}`, `{"free": ...}`); it answers on its standard output.
"""

import json
import logging
import os
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from protocol.errors import StaleFlowError
from protocol.segments import has_room, remove
from protocol.wire.descriptors import raise_limit
from protocol.wire.porter import ACCEPTED, CLOSED, Porter, next_event
from protocol.wire.security import CurveAuthenticator
from workers.weights.channel import (
    AT_ONCE,
    CHUNK,
    DELTA,
    GONE,
    HEADER,
    MAX_TEXT,
    Orders,
    SourceConnection,
    Word,
    decode,
    serving_socket,
)
from workers.weights.deltas import DeltaCache, Pair
from workers.weights.fetch import Fetch
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VERSIONS, VersionStore, versions_in
from workers.weights.version_file import VersionFile

MIN_WINDOW = 2  # chunks: one on its way while the next is asked for
MOST_WINDOWS = 4  # that one reader may wait for: those of an abandoned version end with it
MOST_IN_ALL = 128  # windows that all readers may wait for, readers that have gone included

logger = logging.getLogger("workers")


class WeightsExchange:
    """The exchange of one host: pulls versions for it, and serves them."""

    def __init__(self, orders: Orders) -> None:
        self._on_disk = Path(orders.on_disk) if orders.on_disk is not None else None
        self._store = VersionStore(Path(orders.directory))
        self._follow_to_disk()  # where an earlier process of this worker was, too
        self._store.clean()
        self._key, self._is_writers = orders.key, orders.is_writers
        self._window = max(MIN_WINDOW, orders.window_bytes // CHUNK_BYTES)
        self._context = zmq.Context()
        self._authenticator = None
        if orders.key is not None:
            self._authenticator = CurveAuthenticator(
                self._context, admits=orders.key.public.__eq__, on_refusal=lambda why: logger.warning(why)
            )
        self._router = serving_socket(self._context, orders.bind, window=self._window, key=orders.key)
        self.endpoint: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._monitor = self._router.get_monitor_socket(ACCEPTED | CLOSED)
        self._porter = Porter(self.endpoint, most=raise_limit().strangers)
        self._held: dict[int, VersionFile] = {}  # opened for readers, or for deltas
        self._bases: set[int] = set()  # retired: not served any more, but kept as bases of deltas
        self._freed: set[int] = set()  # that the trainer is about to remove
        self._is_telling_deltas, self._deltas = orders.deltas, DeltaCache()
        self._orders: deque[dict[str, Any]] = deque()  # pulls that wait for the current one
        self._fetch: Fetch | None = None
        self._kept: SourceConnection | None = None  # to the source of the pull before
        self._waiting: dict[Word, list[bytes]] = {}  # requested, and not here yet
        self._awaited = Counter[bytes]()  # waiting requests by reader, without zeros
        self._awaited_in_all = 0
        self._failed: dict[int, str] = {}  # newer versions that no source had, and why; until ordered again
        self._input = b""
        self.served_bytes = 0

    def run(self) -> None:
        """Pull and serve until the worker ends."""
        self._say(serving=self.endpoint)
        descriptor = sys.stdin.fileno()
        os.set_blocking(descriptor, False)
        fixed: list[Any] = [self._router, descriptor, self._monitor]
        if self._authenticator:
            fixed.append(self._authenticator.socket)
        poller, polled = zmq.Poller(), list[Any]()
        while True:
            asked = self._fetch or self._kept
            wanted = [*fixed, *(asked.sockets if asked else [])]
            if wanted != polled:
                poller, polled = _poller(wanted), wanted
            wait_s = max(0.0, self._fetch.deadline_s - time.monotonic()) if self._fetch else None
            ready = dict(poller.poll(None if wait_s is None else int(wait_s * 1000) + 1))
            if self._authenticator and self._authenticator.socket in ready:
                self._authenticator.answer_all()
            if self._kept is not None and (self._kept.socket in ready or self._kept.lost()):
                self._forget_source()  # it is lost, or sent something unrequested
            if self._monitor in ready:
                self._look_at_the_door()
            if self._router in ready:
                self._serve()
            if self._fetch is not None:
                self._go_on(self._fetch)
            if descriptor in ready and not self._take_orders(descriptor):
                return

    def close(self) -> None:
        """Release everything; pulled versions stay while other workers of this host hold the folder."""
        if self._fetch is not None:
            self._fetch.close()
        self._forget_source()
        self._held.clear()
        while next_event(self._monitor) is not None:
            pass  # libzmq's thread may wait for room there
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(0)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.destroy(linger=0)  # also sockets that are still open: the worker waits for this process
        self._store.close()
        if not self._is_writers:
            remove(self._store.directory)

    # -- orders ---------------------------------------------------------------------------------------------

    def _take_orders(self, descriptor: int) -> bool:
        content = os.read(descriptor, 1 << 20)
        self._input += content
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "pull" in order:
                self._orders.append(order)
            elif "retire" in order:
                self._bases.add(order["retire"])
                self._free(order["free"])
                self._say(retired=order["retire"], served_bytes=self.served_bytes)
            else:
                self._free(order["free"])
        self._start_next()
        return bool(content)

    def _free(self, versions: list[int]) -> None:
        if self._is_writers:
            self._freed = {*versions, *self._freed}.intersection(self._store.versions())
        for version in versions:
            self._bases.discard(version)
            self._held.pop(version, None)
            self._deltas.forget(version)
            if not self._is_writers:
                self._store.retire(version)

    def _start_next(self) -> None:
        while self._fetch is None and self._orders:
            order = self._orders.popleft()
            version = order["pull"]
            self._failed.pop(version, None)
            self._follow_to_disk()
            if (found := self._store.find(version)) is not None and found.digest == order["digest"]:
                self._say(pulled=version, location=found.location, refused=0, received_bytes=0)
                continue
            self._fetch = Fetch(
                self._store_for, version, order["digest"], order["sources"],
                context=self._context, window=self._window, key=self._key,
                base=self._base_for(version), deltas=self._deltas, kept=self._kept,
            )  # fmt: skip
            self._kept = None
            self._end_if_over(self._fetch)

    def _store_for(self, size: int) -> VersionStore:
        """Where a version of so many bytes is kept: on a disk if shared memory has no room for the first.

        Raises: RunError, ConfigError if the folder there cannot be used.
        """
        if self._on_disk is not None and not self._store.versions() and not has_room(VERSIONS * size):
            self._go_to_disk(self._on_disk)
        return self._store

    def _follow_to_disk(self) -> None:
        """Keep versions on a disk if another worker of this host does, as long as none is kept here."""
        if self._on_disk is not None and versions_in(self._on_disk) and not self._store.versions():
            with suppress(StaleFlowError):  # a folder of another user: then this host shares nothing
                self._go_to_disk(self._on_disk)

    def _go_to_disk(self, folder: Path) -> None:
        before, self._store = self._store, VersionStore(folder)
        self._on_disk = None
        before.close()
        remove(before.directory)
        logger.info("Shared memory has no room for %d versions: they are kept in %s.", VERSIONS, folder)

    def _base_for(self, policy_version: int) -> VersionFile | None:
        """The newest older version on this host, as the base of deltas."""
        older = [version for version in self._store.versions() if version < policy_version]
        return self._hold(older[-1]) if older and self._is_telling_deltas else None

    def _say(self, **words: Any) -> None:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()

    # -- pulling --------------------------------------------------------------------------------------------

    def _go_on(self, fetch: Fetch) -> None:
        had_header = fetch.header is not None
        came = {*fetch.hear()}
        for word in [word for word in self._waiting if word.policy_version == fetch.policy_version]:
            if word.kind in (CHUNK, DELTA) and word.chunk in came:
                self._answer_waiting(word)
        if fetch.header is not None and not had_header:
            self._answer_waiting(Word(HEADER, fetch.policy_version))
        fetch.notice()
        fetch.hurry()
        self._end_if_over(fetch)

    def _end_if_over(self, fetch: Fetch) -> None:
        if not fetch.is_over:
            return
        self._fetch, self._kept = None, fetch.connection
        if fetch.failure is not None:
            self._failed[fetch.policy_version] = fetch.why
        # older ones, too: a reader that was told the next version in their place never pulls them
        for word in [word for word in self._waiting if word.policy_version <= fetch.policy_version]:
            self._answer_waiting(word)
        counts = {"refused": fetch.refused, "received_bytes": fetch.received_bytes}
        if fetch.published is not None:
            self._say(pulled=fetch.policy_version, location=fetch.published.location, **counts)
        else:
            kind = "unreachable" if fetch.is_unreachable else "no room" if fetch.has_no_room else ""
            self._say(failed=fetch.policy_version, reason=fetch.failure, kind=kind, **counts)
        self._start_next()

    def _forget_source(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    # -- serving --------------------------------------------------------------------------------------------

    def _look_at_the_door(self) -> None:
        """Count connections: idle strangers must not take the descriptors that pulls need."""
        now = time.monotonic()
        while (event := next_event(self._monitor)) is not None:
            self._porter.hear(*event, now)

    def _serve(self) -> None:
        for _ in range(AT_ONCE):  # each answer brings the next request: other sockets wait meanwhile
            try:
                reader, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._porter.gone(int(reader.get(zmq.SRCFD)))
            word = decode(frames[0].bytes) if len(frames) == 1 else None
            if word is not None and word.kind in (HEADER, CHUNK, DELTA):
                self._answer(reader.bytes, word)

    def _answer_waiting(self, word: Word) -> None:
        readers = self._waiting.pop(word, [])
        for reader in readers:
            self._waits_no_more(reader)
        for reader in readers:
            self._answer(reader, word)

    def _answer(self, reader: bytes, word: Word) -> None:
        content = self._find(word)
        if content is not None:
            if word.kind == DELTA:
                word, content = self._as_delta(word, content)
            self._send(reader, word, content)
            return
        newest = max(self._store.versions(), default=-1)
        if self._is_coming(word.policy_version, newest):
            self._have_wait(reader, word)
        else:
            text = self._why_not(word.policy_version, newest)
            self._send(reader, Word(GONE, word.policy_version), text.encode()[:MAX_TEXT])

    def _have_wait(self, reader: bytes, word: Word) -> None:
        """Have a reader wait for a chunk; a reader with too many waiting requests gets no answer.

        If all readers together wait for too much, the oldest requests are dropped: a reader that has left
        does not say so, and one that is still there goes on with its next source.
        """
        window = self._window + 1  # a header, and chunks
        if self._awaited[reader] >= MOST_WINDOWS * window or reader in self._waiting.get(word, ()):
            return
        self._waiting.setdefault(word, []).append(reader)
        self._awaited[reader] += 1
        self._awaited_in_all += 1
        while self._awaited_in_all > MOST_IN_ALL * window:
            oldest, readers = next(iter(self._waiting.items()))
            self._waits_no_more(readers.pop(0))
            if not readers:
                del self._waiting[oldest]

    def _waits_no_more(self, reader: bytes) -> None:
        """Count one of a reader's waiting requests as done."""
        self._awaited_in_all -= 1
        self._awaited[reader] -= 1
        if not self._awaited[reader]:
            del self._awaited[reader]

    def _is_coming(self, policy_version: int, newest: int) -> bool:
        """Whether a version is being pulled, or will be: a reader may know of it before this host."""
        coming = [order["pull"] for order in self._orders]
        if self._fetch is not None:
            coming.append(self._fetch.policy_version)
        is_next = policy_version > newest and policy_version not in self._failed
        return policy_version in coming or (is_next and not self._is_writers)

    def _why_not(self, policy_version: int, newest: int) -> str:
        self._failed = {version: why for version, why in self._failed.items() if version > newest}
        if (why := self._failed.get(policy_version)) is not None:
            return f"version {policy_version} could not be pulled there: {why}"
        return f"version {policy_version} was retired, or never here; the newest here is {newest}"

    def _find(self, word: Word) -> memoryview | bytes | None:
        """The requested header or chunk, from the version being pulled or from one on this host."""
        if self._fetch is not None and self._fetch.policy_version == word.policy_version:
            return self._fetch.header if word.kind == HEADER else self._fetch.chunk(word.chunk)
        held = None if word.policy_version in self._bases else self._hold(word.policy_version)
        if held is None:
            return None
        return held.header if word.kind == HEADER else held.chunk(word.chunk) or None

    def _as_delta(self, word: Word, chunk: memoryview | bytes) -> tuple[Word, memoryview | bytes]:
        """The chunk as a delta against the reader's base, or whole if there is no useful delta."""
        pair, whole = Pair(word.policy_version, word.base), Word(CHUNK, word.policy_version, word.chunk)
        if (found := self._deltas.find(pair, word.chunk)) is not None:
            return word, found
        if not self._is_telling_deltas or not self._deltas.is_worth_trying(pair):
            return whole, chunk
        base = self._hold(word.base)
        if base is None or len(told := base.sound_chunk(word.chunk)) != len(chunk):
            return whole, chunk
        made = self._deltas.make(pair, word.chunk, chunk, told)
        return (word, made) if made is not None else (whole, chunk)

    def _hold(self, policy_version: int) -> VersionFile | None:
        if policy_version in self._freed:  # whoever opens it now holds its storage after its end
            return None
        if policy_version not in self._held:
            found = VersionFile.open(self._store.path(policy_version))
            if found is None:
                return None
            self._held[policy_version] = found
        return self._held[policy_version]

    def _send(self, reader: bytes, word: Word, content: memoryview | bytes) -> None:
        """Send by reference: the bytes of a version never change.

        A reader that has left, or requests more than a window, gets no answer.
        """
        try:
            self._router.send(reader, zmq.SNDMORE | zmq.NOBLOCK)
            self._router.send(word.encode(), zmq.SNDMORE | zmq.NOBLOCK)
            self._router.send(content, zmq.NOBLOCK, copy=False)
            self.served_bytes += len(content)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise


def _poller(sockets: list[Any]) -> zmq.Poller:
    made = zmq.Poller()
    for socket in sockets:
        made.register(socket, zmq.POLLIN)
    return made


def main() -> None:
    """Run the exchange; ends the process."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        said = sys.stdin.buffer.raw.readline()  # pyright: ignore[reportAttributeAccessIssue]  # has it
        exchange = WeightsExchange(Orders.model_validate_json(said))
    except StaleFlowError as error:
        logger.error("%s", error)
        sys.exit(1)
    try:
        exchange.run()
    finally:
        exchange.close()


if __name__ == "__main__":
    main()
