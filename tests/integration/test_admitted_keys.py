"""What a key that a live run admits gets, and what it cannot do: the files of the model once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from scripted_peers import PROMPTS, settings

from controller import Controller
from protocol.messages import Attach, Close, FetchModel, Message, ModelFiles, Role, Welcome
from protocol.wire.connection import Connection
from protocol.wire.security import ServerKey, load_worker_key, make_keys

LIMIT_S = 300


class Admitted:
    """A worker that says what it is told to, over a connection with its key, and keeps what it hears."""

    def __init__(self, run: Path, keys: Path, role: Role) -> None:
        self.heard: list[tuple[Message, tuple[bytes, ...]]] = []
        self._news = asyncio.Event()
        self.line = Connection(
            (run / "address").read_text().strip(),
            on_message=self._hear, on_fault=print, key=load_worker_key(keys / f"{role}1.key"),
        )  # fmt: skip
        self.line.start()
        self.line.send(Attach(role, f"{role}1", 1, "elsewhere"))

    async def until(self, is_it: Callable[[Message], bool]) -> Message:
        async with asyncio.timeout(LIMIT_S):
            while not (found := [message for message, _ in self.heard if is_it(message)]):
                self._news.clear()
                await self._news.wait()
        return found[0]

    def _hear(self, message: Message, frames: tuple[bytes, ...]) -> None:
        self.heard.append((message, frames))
        self._news.set()


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[tuple[Controller, Path]]:
    """A live run under keys, without a worker of its own."""
    keys = tmp_path / "keys"
    for role in ("rollout", "reward", "trainer"):
        make_keys(keys, f"{role}1", (role,))
    made = settings(tmp_path, steps=1)
    here = made.controller.model_copy(update={"bind": "tcp://127.0.0.1:*", "keys": str(keys)})
    async with Controller(made.model_copy(update={"controller": here}), prompts=PROMPTS) as controller:

        async def steps() -> None:
            async for _ in controller.train():
                pass

        task = asyncio.create_task(steps())
        yield controller, keys
        task.cancel()


async def test_a_worker_gets_the_files_of_the_model_once(run: tuple[Controller, Path]) -> None:
    controller, keys = run
    one, other = (Admitted(controller.run_dir, keys, role) for role in ("reward", "rollout"))
    for peer in (one, other):
        peer.line.send(FetchModel())
        await peer.until(lambda message: isinstance(message, ModelFiles))
    assert [frames for message, frames in one.heard if isinstance(message, ModelFiles)] == [
        frames for message, frames in other.heard if isinstance(message, ModelFiles)
    ]
    for _ in range(100):
        one.line.send(FetchModel())
    closed = await one.until(lambda message: isinstance(message, Close))
    assert closed == Close("It asked for the files of the model again; a worker asks once.", is_fault=True)
    assert sum(isinstance(message, ModelFiles) for message, _ in one.heard) == 1
    assert not any(isinstance(message, Close) for message, _ in other.heard)
    for peer in (one, other):
        peer.line.close()


async def test_only_roles_that_move_weights_get_their_key(run: tuple[Controller, Path]) -> None:
    controller, keys = run
    got = {}
    for role in ("rollout", "reward", "trainer"):
        peer = Admitted(controller.run_dir, keys, role)
        got[role] = await peer.until(lambda message: isinstance(message, Welcome))
        peer.line.close()
    of_the_run = ServerKey.model_validate_json((controller.run_dir / "weights.key").read_text())
    assert [role for role, welcome in got.items() if welcome.weights_key] == ["rollout", "trainer"]
    assert ServerKey.model_validate_json(got["rollout"].weights_key) == of_the_run
