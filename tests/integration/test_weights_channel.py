"""Versions between hosts, with real agents: handed on, resumed, refused, and gone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import zmq
from local_workers import below, command_line

from protocol.errors import SourcesUnreachable, WeightsError
from protocol.wire.security import channel_key
from tests.support.ports import free_port
from workers.weights.address import Announced
from workers.weights.channel import CHUNK, DELTA, GONE, HEADER, Word, decode
from workers.weights.exchange_process import WeightsExchangeProcess
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import PublishedFile, VersionStore

torch = pytest.importorskip("torch")
CHUNKS = 24
WINDOW = 4


HERE = Announced("127.0.0.1", "in a test")


class Hosts:
    """A trainer's folder with its agent, and any number of other hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = VersionStore(folder / "trainer")
        self.all: list[WeightsExchangeProcess] = []
        self.restarted: asyncio.Queue[str] = asyncio.Queue()

    def add(self, name: str, *, address: Announced = HERE, **options) -> WeightsExchangeProcess:
        made = WeightsExchangeProcess(
            self.folder / name, address=address, window_bytes=WINDOW * CHUNK_BYTES,
            is_writers=name == "trainer", on_restart=self.restarted.put_nowait, **options,
        )  # fmt: skip
        self.all.append(made)
        return made

    def publish(self, version: int) -> PublishedFile:
        from workers.weights.tensors import publish

        return publish(self.store, version, {"w": torch.randn(CHUNKS * CHUNK_BYTES // 4)})

    def publish_bf16(self, version: int, *, share: float = 0.0, size: int = CHUNKS * CHUNK_BYTES):
        """Weights of which this share differs from those that were published last."""
        from workers.weights.tensors import publish

        words = self.words if share else torch.randn(size // 2).bfloat16().view(torch.int16)
        self.words = torch.where(torch.rand(len(words)) < share, words ^ 1, words)
        return publish(self.store, version, {"w": self.words.view(torch.bfloat16)})


class Source:
    """A source that the test is: it says what it likes."""

    def __init__(self, published: PublishedFile, *, answers_deltas_with: bytes | None = None) -> None:
        self.delta = answers_deltas_with
        self.content = Path(published.location).read_bytes()
        self.begin = len(self.content) - CHUNKS * CHUNK_BYTES
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.asked: list[int] = []
        self.names: list[bytes] = []  # of the connections that words came over
        self.held_back: list[tuple[bytes, bytes]] = []  # reader, and what it asked for

    def show(self, published: PublishedFile) -> None:
        """Have another version from now on, of one size."""
        self.content, self.names = Path(published.location).read_bytes(), []

    def answer(self, *, only=None, spoil=lambda chunk, data: data, wait_ms=5000) -> bool:
        """Answer one word, chunks `only` if they are named; False if none came."""
        if not self.socket.poll(wait_ms):
            return False
        reader, frame = self.socket.recv_multipart()
        self.names.append(reader)
        word = decode(frame)
        assert word is not None
        if word.kind == HEADER:
            self.socket.send_multipart([reader, frame, self.content[: self.begin]])
            return True
        self.asked.append(word.chunk)
        if word.kind == DELTA and self.delta is not None:
            self.socket.send_multipart([reader, frame, self.delta])
            return True
        if word.kind == DELTA:
            frame = word._replace(kind=CHUNK).encode()
        if only is None or word.chunk in only:
            self.send(reader, frame, spoil)
        else:
            self.held_back.append((reader, frame))
        return True

    def refuse(self, why: bytes) -> None:
        """Say of the word that comes next that the version is gone."""
        assert self.socket.poll(300_000)
        reader, frame = self.socket.recv_multipart()
        word = decode(frame)
        assert word is not None
        self.socket.send_multipart([reader, Word(GONE, word.policy_version).encode(), why])

    def send(self, reader, frame, spoil=lambda chunk, data: data):
        chunk = decode(frame).chunk
        start = self.begin + chunk * CHUNK_BYTES
        data = spoil(chunk, self.content[start : start + CHUNK_BYTES])
        self.socket.send_multipart([reader, frame, data])

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    for neighbour in hosts.all:
        await neighbour.close()
    hosts.store.close()


@pytest.fixture
def source(hosts):
    made = Source(hosts.publish(0))
    yield made
    made.close()


def is_same(published: PublishedFile, location: str) -> bool:
    return Path(location).read_bytes() == Path(published.location).read_bytes()


async def test_a_version_is_handed_on_while_it_is_still_coming_in(hosts):
    published = hosts.publish(3)
    trainer, first, second = (hosts.add(name) for name in ("trainer", "first", "second"))
    near, far = await first.start(), await trainer.start()
    fetched = await asyncio.gather(
        second.fetch(3, published.digest, [near, far]), first.fetch(3, published.digest, [far])
    )
    assert all(is_same(published, found.location) for found in fetched)
    assert {found.received_bytes for found in fetched} == {CHUNKS * CHUNK_BYTES}
    again = await second.fetch(3, published.digest, [near, far])
    assert again.received_bytes == 0  # it is on this host
    for neighbour in (trainer, first):
        await neighbour.retire(3)
    assert trainer.served_bytes == first.served_bytes == published.size_bytes


async def test_a_relay_that_is_killed_costs_the_reader_nothing_that_it_has(hosts, source):
    """The relay is starved in the middle of the version, then killed: the reader goes on with the trainer."""
    published = hosts.store.find(0)
    trainer, relay, reader = (hosts.add(name) for name in ("trainer", "relay", "reader"))
    near, far, own = [await agent.start() for agent in (relay, trainer, reader)]
    half = set(range(CHUNKS // 2))
    coming = asyncio.ensure_future(relay.fetch(0, published.digest, [source.endpoint]))
    fetching = asyncio.ensure_future(reader.fetch(0, published.digest, [near, far]))
    while set(source.asked) != half | set(range(CHUNKS // 2, CHUNKS // 2 + WINDOW)):
        await asyncio.to_thread(source.answer, only=half)
    await asyncio.to_thread(until_it_hands_on, own, Word(CHUNK, 0, max(half)))
    (killed,) = [p for p in agents() if str(hosts.folder / "relay") in str(p.open_files())]
    killed.send_signal(signal.SIGKILL)
    fetched = await fetching
    assert is_same(published, fetched.location)
    assert fetched.received_bytes == CHUNKS * CHUNK_BYTES  # nothing twice
    await trainer.retire(0)
    assert trainer.served_bytes < published.size_bytes  # the relay has brought the beginning
    with pytest.raises(WeightsError, match="ended with code -9"):
        await coming


def until_it_hands_on(endpoint: str, word: Word) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as probe:
        probe.setsockopt(zmq.LINGER, 0)
        probe.connect(endpoint)
        probe.send(word.encode())
        assert probe.recv_multipart()[0] == word.encode()


def agents() -> list[psutil.Process]:
    return [process for process in below() if "workers.weights.exchange" in command_line(process)]


async def test_an_agent_that_is_killed_is_started_again_and_says_where(hosts):
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    published, before = hosts.publish(1), await trainer.start()
    (process,) = agents()
    process.kill()
    await asyncio.to_thread(process.wait)
    after = await hosts.restarted.get()
    assert after != before
    fetched = await reader.fetch(1, published.digest, [before, after])  # the first refuses connections
    assert is_same(published, fetched.location)


async def test_a_chunk_that_was_changed_on_the_way_is_refused_and_pulled_elsewhere(hosts, source):
    published = hosts.store.find(0)
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    far = await trainer.start()
    fetching = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint, far]))

    def flip(chunk, data):
        return data if chunk != 5 else bytes([data[0] ^ 1]) + data[1:]

    while 5 not in source.asked:
        await asyncio.to_thread(source.answer, spoil=flip)
    fetched = await fetching
    assert fetched.refused == 1
    assert is_same(published, fetched.location)


@pytest.mark.parametrize(
    "spoil", [lambda _, data: data[:-1], lambda _, data: b"", lambda _, data: data + b"x"]
)
async def test_a_chunk_of_the_wrong_length_is_refused(hosts, source, spoil):
    published = hosts.store.find(0)
    reader = hosts.add("reader")
    fetching = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint]))
    while not fetching.done():
        await asyncio.to_thread(source.answer, spoil=spoil, wait_ms=200)
    with pytest.raises(WeightsError, match="has another checksum than was published"):
        await fetching
    assert not list((hosts.folder / "reader").glob("v*"))  # nothing of it is left


async def test_a_version_that_was_published_with_another_digest_is_refused(hosts):
    hosts.publish(1)
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    with pytest.raises(WeightsError, match=r"f{32} was published"):
        await reader.fetch(1, "f" * 32, [await trainer.start()])


async def test_that_no_source_is_reached_is_told_from_a_wrong_version(hosts):
    published = hosts.publish(1)
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    nobody = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(SourcesUnreachable, match="could not be pulled from any source, the last because: "):
        await reader.fetch(1, published.digest, [nobody, nobody])
    with pytest.raises(WeightsError, match=r"f{32} was published") as wrong:
        await reader.fetch(1, "f" * 32, [await trainer.start()])
    assert not isinstance(wrong.value, SourcesUnreachable)
    assert is_same(
        published, (await reader.fetch(1, published.digest, [nobody, await trainer.start()])).location
    )


async def test_a_version_that_is_retired_while_it_is_pulled_is_gone_in_words(hosts, source):
    published = hosts.store.find(0)
    reader = hosts.add("reader")
    fetching = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint]))
    while len(source.asked) < WINDOW:
        await asyncio.to_thread(source.answer, only={0})
    reply = b"version 0 was retired, or never here; the newest here is 2"
    await asyncio.to_thread(source.refuse, reply)
    with pytest.raises(WeightsError, match=r"was retired, .* the newest here is 2"):
        await fetching


async def test_a_retired_version_is_not_served_any_more(hosts):
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    old, endpoint = hosts.publish(1), await trainer.start()
    await reader.fetch(1, old.digest, [endpoint])
    hosts.publish(2)
    await trainer.retire(1)
    hosts.store.retire(1)
    await reader.retire(1)
    with pytest.raises(WeightsError, match="version 1 was retired, or never here; the newest here is 2"):
        await reader.fetch(1, old.digest, [endpoint])
    inode = os.stat(hosts.store.path(2)).st_ino
    assert os.stat(hosts.publish(3).location).st_ino != inode  # and storage is used again: see test_store


async def test_no_more_than_a_window_is_asked_for_at_a_time(hosts, source):
    published = hosts.store.find(0)
    reader = hosts.add("reader")
    fetching = asyncio.ensure_future(reader.fetch(0, published.digest, [source.endpoint]))
    while len(source.asked) < WINDOW:
        await asyncio.to_thread(source.answer, only=())
    assert not await asyncio.to_thread(source.answer, only=(), wait_ms=500)
    assert source.asked == list(range(WINDOW))
    source.close()
    with pytest.raises(WeightsError):
        await fetching


async def test_a_reader_that_asks_for_everything_and_takes_nothing_costs_the_server_no_memory(hosts):
    hosts.publish(1)
    endpoint = await hosts.add("trainer").start()
    (process,) = agents()
    context = zmq.Context()
    greedy = context.socket(zmq.DEALER)
    greedy.setsockopt(zmq.LINGER, 0)
    greedy.setsockopt(zmq.RCVHWM, 1)
    greedy.connect(endpoint)
    for _ in range(20):
        for chunk in range(CHUNKS):
            greedy.send(Word(CHUNK, 1, chunk).encode())
    greedy.send(Word(HEADER, 1).encode())
    polite = hosts.add("polite")
    published = hosts.store.find(1)
    await polite.fetch(1, published.digest, [endpoint])  # by then the greedy one was heard
    private = process.memory_full_info().uss
    assert private < 100 << 20  # 480 MB were asked for
    greedy.close(0)
    context.term()


async def test_words_without_the_key_are_not_heard(hosts, tmp_path):
    key = channel_key(tmp_path / "weights.key")
    published = hosts.publish(1)
    trainer = hosts.add("trainer", key=key)
    endpoint = await trainer.start()
    for name, other in (("plain", None), ("stranger", channel_key(tmp_path / "other.key"))):
        with pytest.raises(WeightsError, match="could not be pulled from any source"):
            await hosts.add(name, key=other).fetch(1, published.digest, [endpoint])
    fetched = await hosts.add("friend", key=key).fetch(1, published.digest, [endpoint])
    assert is_same(published, fetched.location)


async def test_the_next_version_comes_as_what_differs_and_hop_by_hop_is_made_once(hosts):
    first = hosts.publish_bf16(1)
    trainer, relay, reader = (hosts.add(name) for name in ("trainer", "relay", "reader"))
    far, near = await trainer.start(), await relay.start()
    await relay.fetch(1, first.digest, [far])
    await reader.fetch(1, first.digest, [near])
    second = hosts.publish_bf16(2, share=0.01)
    fetched = [await relay.fetch(2, second.digest, [far]), await reader.fetch(2, second.digest, [near, far])]
    assert all(is_same(second, found.location) for found in fetched)
    assert fetched[0].received_bytes == fetched[1].received_bytes < 0.03 * second.size_bytes
    await trainer.retire(1)
    await trainer.retire(2)
    assert trainer.served_bytes < 1.05 * first.size_bytes


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.thorough)])
async def test_versions_told_by_the_one_before_are_the_same_bit_for_bit_also_after_a_lost_one(hosts, count):
    """The trainer publishes, and frees the version before the last; the reader misses one in the middle."""
    trainer, reader = hosts.add("trainer"), hosts.add("reader")
    endpoint, received = await trainer.start(), {}
    published = hosts.publish_bf16(1, size=CHUNK_BYTES + 10_000)
    for version in range(1, count + 1):
        if version != count // 2 + 1:
            fetched = await reader.fetch(version, published.digest, [endpoint])
            assert is_same(published, fetched.location)
            received[version] = fetched.received_bytes
        if version > 1:
            await reader.retire(version - 1)
            for freed in await trainer.retire(version - 1):
                hosts.store.retire(freed)
        published = hosts.publish_bf16(version + 1, share=0.01)
    whole = CHUNK_BYTES + 10_000
    assert received.pop(1) == whole
    assert max(received.values()) < 0.04 * whole  # the one behind it is told by the one before it
    assert len(hosts.store.versions()) == 3


async def test_a_delta_that_gives_other_bytes_is_refused_and_the_version_pulled_whole(hosts):
    from workers.weights.deltas import encode

    trainer, reader, first = hosts.add("trainer"), hosts.add("reader"), hosts.publish_bf16(0)
    await reader.fetch(0, first.digest, [await trainer.start()])
    second = hosts.publish_bf16(1, share=0.01)
    liar = Source(second, answers_deltas_with=encode(bytes(CHUNK_BYTES), bytes(CHUNK_BYTES)))
    fetching = asyncio.ensure_future(reader.fetch(1, second.digest, [liar.endpoint]))
    while not fetching.done():
        await asyncio.to_thread(liar.answer, wait_ms=50)
    liar.close()
    assert is_same(second, (await fetching).location)
    assert (await fetching).refused == 1


async def test_without_deltas_every_version_comes_whole(hosts):
    trainer, reader = hosts.add("trainer"), hosts.add("reader", deltas=False)
    endpoint, first = await trainer.start(), hosts.publish_bf16(1)
    await reader.fetch(1, first.digest, [endpoint])
    second = hosts.publish_bf16(2, share=0.01)
    fetched = await reader.fetch(2, second.digest, [endpoint])
    assert fetched.received_bytes == CHUNKS * CHUNK_BYTES
