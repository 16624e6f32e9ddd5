"""The initial model: made once, and its files go to who asks, as soon as it is there."""

import asyncio
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.host.initial_model import InitialModel
from controller.host.run_directory import RunDirectory
from protocol.messages import ModelFiles
from protocol.wire.descriptors import RETRY_S

CONFIG = '{"vocab_size": 7}'


def write_model(directory: Path) -> None:
    directory.mkdir()
    (directory / "config.json").write_text(CONFIG)


class Server:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.vocabulary: int | None = None
        self.sent: list[tuple[str, ModelFiles, tuple[bytes, ...]]] = []

    def send(self, peer, message, frames=()):
        self.sent.append((peer, message, frames))


class Supervisor:
    """Makes a model at once, or fails."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def prepare_model(self, *, factory, directory: Path, seed, on_progress):
        on_progress(0.5, "half")
        write_model(directory)
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


def model_of(folder, told):
    settings, directory = folder
    server = Server()
    return server, InitialModel(settings, directory, server, on_progress=lambda *words: told.append(words))


async def test_who_asks_before_it_is_there_gets_the_files_then(folder):
    told = []
    server, model = model_of(folder, told)
    supervisor = Supervisor()
    model.send_files("early")
    await model.make(supervisor)
    assert server.sent == []
    model.send_to_waiting()
    model.send_files("late")
    assert [peer for peer, _, _ in server.sent] == ["early", "late"]
    assert all(message.names == ("config.json",) for _, message, _ in server.sent)
    assert all(frames == (CONFIG.encode(),) for _, _, frames in server.sent)
    assert (server.vocabulary, told) == (7, [(0.5, "half")])


async def test_a_model_of_the_same_factory_and_seed_is_made_once(folder):
    supervisor = Supervisor()
    for _ in range(2):
        _, model = model_of(folder, [])
        await model.make(supervisor)
    assert len(supervisor.made) == 1


async def test_files_are_read_again_when_there_were_no_descriptors(folder, monkeypatch):
    server, model = model_of(folder, [])
    await model.make(Supervisor())
    model.send_to_waiting()
    later = []

    def spent(directory):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("controller.host.initial_model.read_model_files", spent)
        loop = asyncio.get_running_loop()
        patched.setattr(loop, "call_later", lambda *call: later.append(call), raising=False)
        model.send_files("peer")
    ((delay_s, again, peer),) = later
    assert (delay_s, server.sent) == (RETRY_S, [])
    again(peer)
    assert [(to, message.names) for to, message, _ in server.sent] == [("peer", ("config.json",))]
