"""The initial model: made once, and its files go to who asks, as soon as it is there."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.host.initial_model import InitialModel
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError
from protocol.messages import ModelFiles
from protocol.model_files import note_of, read_model_files
from protocol.wire.descriptors import RETRY_S

CONFIG = '{"vocab_size": 7}'
LIMIT_S = 300


def write_model(directory: Path) -> None:
    directory.mkdir()
    (directory / "config.json").write_text(CONFIG)


class Server:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.vocabulary: int | None = None
        self.sent: list[tuple[str, ModelFiles, tuple[bytes, ...]]] = []
        self._news = asyncio.Event()

    def send(self, peer, message, frames=()):
        self.sent.append((peer, message, frames))
        self._news.set()

    async def has_sent(self, count: int) -> list[str]:
        """To whom, once it was so many times."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.sent) < count:
                self._news.clear()
                await self._news.wait()
        return [peer for peer, _, _ in self.sent]


class Supervisor:
    """Makes a model at once, or fails."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def prepare_model(self, *, factory, directory: Path, seed, on_progress, origin):
        on_progress(0.5, "half")
        write_model(directory)
        note_of(directory).write_text(origin)
        self.made.append(factory)


@pytest.fixture
def folder(tmp_path):
    settings = Config.model_validate({
        "run": {"dir": str(tmp_path), "name": "run"},
        "model": {"factory": "examples.tasks.parity:make_model"},
    })  # fmt: skip
    directory = RunDirectory(settings)
    yield settings, directory
    directory.close()


def model_of(folder, told, faults=None):
    settings, directory = folder
    server = Server()
    return server, InitialModel(
        settings, directory, server, on_progress=lambda *words: told.append(words),
        on_fault=lambda *words: faults.append(words),
    )  # fmt: skip


async def test_who_asks_before_it_is_there_gets_the_files_then(folder):
    told = []
    server, model = model_of(folder, told)
    supervisor = Supervisor()
    model.send_files("early")
    await model.make(supervisor)
    assert server.sent == []
    model.send_to_waiting()
    model.send_files("late")
    assert await server.has_sent(2) == ["early", "late"]
    assert all(message.names == ("config.json",) for _, message, _ in server.sent)
    assert all(frames == (CONFIG.encode(),) for _, _, frames in server.sent)
    assert (server.vocabulary, told) == (7, [(0.5, "half")])


async def test_a_model_of_the_same_factory_and_seed_is_made_once(folder):
    supervisor = Supervisor()
    for _ in range(2):
        _, model = model_of(folder, [])
        await model.make(supervisor)
    assert len(supervisor.made) == 1


async def test_the_loop_goes_on_while_a_slow_disk_is_looked_at(folder, monkeypatch):
    turned = threading.Event()
    monkeypatch.setattr(
        "controller.host.initial_model.initial_weights",
        lambda config: {"turned": [turned.wait(LIMIT_S / 30)]},
    )
    asyncio.get_running_loop().call_soon(turned.set)
    _, model = model_of(folder, [])
    assert json.loads(await model.weights()) == {"turned": [True]}


def no_descriptors(directory):
    raise OSError(24, "Too many open files")


async def test_files_are_read_again_when_there_are_descriptors(folder, monkeypatch):
    server, model = model_of(folder, [])
    await model.make(Supervisor())
    model.send_to_waiting()
    later, news = [], asyncio.Event()
    with monkeypatch.context() as patched:
        patched.setattr("controller.host.initial_model.read_model_files", no_descriptors)
        loop = asyncio.get_running_loop()
        patched.setattr(loop, "call_later", lambda *call: (later.append(call), news.set()), raising=False)
        model.send_files("peer")
        async with asyncio.timeout(LIMIT_S):
            await news.wait()
        model.send_files("another")  # waits with it
    ((delay_s, again),) = later
    assert (delay_s, server.sent) == (RETRY_S, [])
    again()
    assert await server.has_sent(2) == ["peer", "another"]
    assert [message.names for _, message, _ in server.sent] == [("config.json",)] * 2


async def test_files_are_read_once_in_a_thread_for_all_who_ask(folder, monkeypatch):
    server, model = model_of(folder, [])
    await model.make(Supervisor())
    model.send_to_waiting()
    readers = []

    def read(directory):
        readers.append(threading.current_thread())
        return read_model_files(directory)

    monkeypatch.setattr("controller.host.initial_model.read_model_files", read)
    for peer in "abc":
        model.send_files(peer)
    assert await server.has_sent(3) == ["a", "b", "c"]
    model.send_files("d")
    assert [peer for peer, _, _ in server.sent] == ["a", "b", "c", "d"]
    assert len(readers) == 1
    assert readers[0] is not threading.main_thread()
    first, *others = [frames for _, _, frames in server.sent]
    assert all(frames is first for frames in others)


@pytest.mark.parametrize("is_there", [False, True], ids=["before it is there", "later"])
async def test_who_asks_again_in_one_session_is_at_fault(folder, is_there):
    faults = []
    server, model = model_of(folder, [], faults)
    await model.make(Supervisor())
    if is_there:
        model.send_to_waiting()
    for _ in range(3):
        model.send_files("peer")
    assert faults == [("peer", "It asked for the files of the model again; a worker asks once.")]
    if not is_there:
        model.send_to_waiting()
    assert await server.has_sent(1) == ["peer"]
    model.forget("peer")
    model.send_files("peer")  # a session of its own
    assert await server.has_sent(2) == ["peer", "peer"]
    assert len(faults) == 1


def test_a_model_outside_of_the_run_directory_is_never_replaced(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for name in ("first", "another"):
        model = {"factory": "model.py:make", "path": str(shared)}
        directory = RunDirectory(
            Config.model_validate({"run": {"dir": str(tmp_path), "name": name}, "model": model})
        )
        if name == "first":
            assert not directory.has_model("seed 0")
            shared.mkdir()
            note_of(shared).write_text("seed 0")
        assert directory.has_model("seed 0")
        with pytest.raises(ConfigError, match="made with another seed, factory, or text"):
            directory.has_model("seed 1")
        assert shared.exists()
        directory.close()
