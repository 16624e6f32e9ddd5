"""A tree of relays three deep, trainer to A to B to C: every version arrives bit for bit, whoever falls.

Each host is an exchange, a process of its own behind its own socket: on loopback, and where namespaces are
permitted each in a network of its own, on a cable.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import psutil
import pytest
import zmq
from test_weights_channel import CHUNKS, WINDOW, Hosts, Source, agents, is_same

from protocol.errors import WeightsError
from tests.support.hosts import Network, network, why_not
from workers.weights.address import Announced
from workers.weights.channel import GONE, HEADER, Word, decode
from workers.weights.exchange_process import COMMAND, Fetched, WeightsExchangeProcess
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import PARTIAL, PublishedFile, path_of

pytest.importorskip("torch")
SHARE = 0.01  # of the weights, which differ from one version to the next
PIECES = 8  # of a version
WHOLE = PIECES * CHUNK_BYTES
LIMIT_MS = 60_000  # of an answer that never comes
SLOW, FAST = 0.25e6, 50e6  # bytes/s: of a cable while a relay is killed, and else; a chunk takes 4 s or 20 ms
permitted = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class Chain(Hosts):
    """A trainer and three relays, each fed by the one before it."""

    def __init__(self, folder: Path, made: Network | None = None) -> None:
        super().__init__(folder)
        self.made = made
        self.trainer, self.a, self.b, self.c = (self.join(name) for name in ("trainer", "a", "b", "c"))
        self.relays = (self.a, self.b, self.c)

    def join(self, name: str) -> WeightsExchangeProcess:
        """A host, in a network of its own if there are any."""
        if self.made is None:
            return self.add(name)
        exchange = self.add(name, address=Announced(self.made.address(name), "in a test"))
        exchange.command = self.made.inside(name, *COMMAND)
        return exchange

    async def sources(self, root: str | None = None) -> list[list[str]]:
        """Of A, B and C: nearest first, the trainer last; another root may stand for it."""
        far = root or await self.trainer.start()
        near, middle = await self.a.start(), await self.b.start()
        return [[far], [near, far], [middle, near, far]]

    async def pull(self, version: int, digest: str, *, of: str = "abc") -> list[Fetched]:
        """All at once, those that are furthest away first."""
        told = zip("abc", self.relays, await self.sources(), strict=True)
        pulls = [relay.fetch(version, digest, sources) for name, relay, sources in told if name in of]
        return (await asyncio.gather(*reversed(pulls)))[::-1]

    async def retire(self, version: int) -> None:
        """As the core tells everybody that has it."""
        for freed in await self.trainer.retire(version):
            self.store.retire(freed)
        for relay in self.relays:
            await relay.retire(version)

    def process(self, name: str) -> psutil.Process:
        """The exchange of a host."""
        (found,) = [p for p in agents() if str(self.folder / name) in str(p.open_files())]
        return found

    async def has_come(self, name: str, published: PublishedFile, *, chunk: int) -> None:
        """Wait until a host has this chunk of a version that is not whole there yet."""
        coming = path_of(self.folder / name, 1).with_suffix(PARTIAL)
        begin = published.size_bytes % CHUNK_BYTES + chunk * CHUNK_BYTES  # behind the header
        wanted = piece(Path(published.location), begin)
        while piece(coming, begin) != wanted:  # noqa: ASYNC110  # of another process's file
            await asyncio.sleep(0.01)

    def publish_next(self, version: int) -> PublishedFile:
        """A version of which a small share of the weights differs from those before; the first is new."""
        return self.publish_bf16(version, share=SHARE if version > 1 else 0.0, size=WHOLE)

    def damage(self, name: str, version: int, chunk: int) -> None:
        """Flip a bit of what a host holds, as bad memory would."""
        with path_of(self.folder / name, version).open("r+b") as file:
            size = file.seek(0, 2)
            place = file.seek(size - WHOLE + chunk * CHUNK_BYTES + 77)
            flipped = bytes([file.read(1)[0] ^ 1])
            file.seek(place)
            file.write(flipped)


def piece(path: Path, begin: int) -> bytes:
    """One chunk of a file; nothing if it is not there."""
    return path.read_bytes()[begin : begin + CHUNK_BYTES] if path.exists() else b""


@asynccontextmanager
async def chained(folder: Path, kind: str) -> AsyncIterator[Chain]:
    """On loopback, or on cables between namespaces; all processes end with it."""
    with ExitStack() as stack:
        made = None
        if kind == "namespaces":
            made = stack.enter_context(network("trainer", "a", "b", "c"))
            for cable in (*made.to_host.values(), *made.to_hub.values()):
                cable.bytes_per_s, cable.delay_s = FAST, 0.002
        chain = Chain(folder, made)
        try:
            yield chain
        finally:
            for exchange in chain.all:
                await exchange.close()
            chain.store.close()


@pytest.fixture(params=["loopback", pytest.param("namespaces", marks=permitted)])
async def chain(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Chain]:
    async with chained(tmp_path, request.param) as made:
        yield made


def are_same(published: PublishedFile, fetched: list[Fetched]) -> bool:
    return all(is_same(published, found.location) for found in fetched)


async def test_versions_arrive_bit_for_bit_as_deltas_where_the_base_is_held_and_whole_where_not(chain):
    """C misses version 4, and is told 5 by 3; then it misses 6 and 7, and nobody has what it holds."""
    first = chain.publish_next(1)
    fetched = await chain.pull(1, first.digest)
    assert are_same(first, fetched)
    assert [found.received_bytes for found in fetched] == [WHOLE] * 3
    sent = WHOLE
    for version in range(2, 9):
        published = chain.publish_next(version)
        fetched = await chain.pull(version, published.digest, of="ab" if version in (4, 6, 7) else "abc")
        assert are_same(published, fetched)
        received = [found.received_bytes for found in fetched]
        assert max(received[:2]) < 0.03 * WHOLE
        assert received[2:] == [WHOLE] if version == 8 else max(received) < 0.06 * WHOLE
        sent += received[0]
        await chain.retire(version - 1)
    assert sum(found.refused for found in fetched) == 0
    assert chain.trainer.served_bytes < 1.02 * sent  # each version once, to A, with its header


async def test_a_piece_that_a_relay_spoils_is_refused_by_its_digest_and_comes_from_another_source(chain):
    first = chain.publish_next(1)
    await chain.pull(1, first.digest, of="a")
    chain.damage("a", 1, chunk=5)
    fetched = await chain.pull(1, first.digest, of="bc")
    assert are_same(first, fetched)
    assert [found.refused for found in fetched] == [1, 0]  # what B hands on is right again
    second = chain.publish_next(2)
    chain.damage("c", 1, chunk=7)  # C's own base: a right delta gives wrong bytes there
    fetched = await chain.pull(2, second.digest)
    assert are_same(second, fetched)
    assert [found.refused for found in fetched] == [1, 0, 1]  # A's base is what was spoiled first


@pytest.mark.parametrize("killed", ["b", "ba"])
async def test_a_relay_that_is_killed_in_a_transfer_costs_those_behind_it_nothing_that_they_have(
    tmp_path, killed
):
    """The test is the trainer, and starves A in the middle until relays are gone."""
    async with chained(tmp_path, "loopback") as chain:
        published, half = chain.publish_bf16(1), CHUNKS // 2  # as long as the test says as a source
        with closing(Source(published)) as trainer:
            told = zip(chain.relays, await chain.sources(trainer.endpoint), strict=True)
            pulls = [
                asyncio.ensure_future(host.fetch(1, published.digest, sources)) for host, sources in told
            ]
            while len(trainer.asked) < half + WINDOW:
                await asyncio.to_thread(trainer.answer, only=range(half))
            await chain.has_come("c", published, chunk=half - 1)
            for name in killed:
                chain.process(name).send_signal(signal.SIGKILL)
                with pytest.raises(WeightsError, match="ended with code -9"):
                    await pulls["abc".index(name)]
            if killed == "b":
                for reader, frame in trainer.held_back:
                    trainer.send(reader, frame)
            trainer.asked.clear()
            while not pulls[2].done():
                await asyncio.to_thread(trainer.answer, wait_ms=50)
            fetched = await pulls[2]
            assert is_same(published, fetched.location)
            assert (fetched.received_bytes, fetched.refused) == (CHUNKS * CHUNK_BYTES, 0)
            assert min(trainer.asked) >= half  # nothing twice


class Child:
    """A reader that the test is, behind a relay."""

    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def ask(self, *words: Word) -> None:
        for word in words:
            self.socket.send(word.encode())

    async def hears(self) -> tuple[Word | None, bytes]:
        """What comes next, and what it brings."""
        assert await asyncio.to_thread(self.socket.poll, LIMIT_MS), "nobody answered"
        frame, content = self.socket.recv_multipart()
        return decode(frame), content

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[tuple[Chain, PublishedFile, Child]]:
    """A has version 1, and a child there waits for version 2, which is published."""
    async with chained(tmp_path, "loopback") as chain:
        await chain.pull(1, chain.publish_next(1).digest, of="a")
        with closing(Child(await chain.a.start())) as child:
            child.ask(Word(HEADER, 2), Word(HEADER, 1))
            assert (await child.hears())[0] == Word(HEADER, 1)
            yield chain, chain.publish_next(2), child


async def test_who_waits_at_a_relay_whose_pull_fails_is_told_at_once_and_goes_on_elsewhere(waiting):
    chain, second, child = waiting
    far, near = await chain.trainer.start(), await chain.a.start()
    with closing(Source(second)) as source:
        failing = asyncio.ensure_future(chain.a.fetch(2, second.digest, [source.endpoint]))
        falling_back = asyncio.ensure_future(chain.b.fetch(2, second.digest, [near, far]))
        await asyncio.to_thread(source.refuse, b"nobody may have it")
        with pytest.raises(WeightsError, match="nobody may have it"):
            await failing
    word, why = await child.hears()
    assert (word, why[:43]) == (Word(GONE, 2), b"version 2 could not be pulled there: tcp://")
    assert are_same(second, [await falling_back])
    with pytest.raises(WeightsError, match=r"2 could not be pulled there: tcp://.*: nobody may have it"):
        await chain.c.fetch(2, second.digest, [near])
    assert are_same(second, [await chain.a.fetch(2, second.digest, [far])])  # it is told again
    assert are_same(second, [await chain.c.fetch(2, second.digest, [near])])


async def test_who_waits_for_a_version_in_whose_place_the_relay_was_told_the_next_is_told_so(waiting):
    chain, _, child = waiting
    await chain.a.fetch(3, chain.publish_next(3).digest, [await chain.trainer.start()])
    word, why = await child.hears()
    assert (word, why) == (Word(GONE, 2), b"version 2 was retired, or never here; the newest here is 3")


@permitted
async def test_over_cables_a_killed_relay_is_passed_over_and_comes_back(tmp_path):
    async with chained(tmp_path, "namespaces") as chain:
        assert chain.made is not None
        published, cable = chain.publish_next(1), chain.made.to_host["a"]
        cable.bytes_per_s = SLOW
        pulls = [chain.pull(1, published.digest, of=some) for some in ("ac", "b")]
        pulling = asyncio.gather(*pulls, return_exceptions=True)
        await chain.has_come("c", published, chunk=0)
        chain.process("b").send_signal(signal.SIGKILL)
        cable.bytes_per_s = FAST
        others, failure = await pulling
        assert isinstance(failure, WeightsError)
        assert are_same(published, others)
        assert others[1].received_bytes == WHOLE
        assert await chain.restarted.get() == await chain.b.start()
        assert are_same(published, await chain.pull(1, published.digest))
        second = chain.publish_next(2)
        fetched = await chain.pull(2, second.digest)
        assert are_same(second, fetched)
        assert max(found.received_bytes for found in fetched) < 0.03 * WHOLE
        await chain.retire(1)
        await chain.retire(2)
        assert chain.trainer.served_bytes < 1.1 * WHOLE  # A alone has asked it
