"""A strategy of the user's that fails ends the run with its place; once it is mended the same run goes on."""

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller import Controller
from controller.config.models import Config
from controller.host.shell import Shell
from protocol.errors import PluginError
from protocol.messages import Attach, Message, PolicyPublished, Pull, Ready, Welcome
from protocol.wire.connection import Connection
from protocol.wire.endpoints import find_endpoint

LIMIT_S = 300
RAISES = "def choose(instances, settings):\n    return [instances[1].id]\n"
MENDED = "def choose(instances, settings):\n    return [i.id for i in instances]\n"
SOMEBODY = "0a" * 16  # a routing id
PROMPTS = [{"prompt": "p"}] * 100


@pytest.fixture(autouse=True)
def no_long_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """These workers acknowledge nothing at the end."""
    monkeypatch.setattr("controller.host.shell.FLUSH_S", 0.1)


def config(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": str(folder), "name": "run", "steps": 1},
            "rollout": {"instances": 0},
            "reward": {"workers": 0},
            "trainer": {"local": False},
            "controller": {"beat_s": 20.0, "lease_s": 60.0},
            "staleness": {"synchronization": str(folder / "mine.py") + ":choose"},
        }
    )


class Worker:
    """The far end of a link: attached and ready."""

    def __init__(self, run: Path, role: str) -> None:
        self.told: list[Message] = []
        self.news = asyncio.Event()
        endpoint, _ = find_endpoint(str(run))
        self.connection = Connection(endpoint, on_message=self._hear, on_fault=lambda _: None)
        self.connection.start()
        self.connection.send(Attach(role, f"some-{role}", 1, "here"))  # type: ignore[arg-type]
        self.connection.send(Ready(0, 4, 1000) if role == "rollout" else Ready(0, 0, 0))

    def _hear(self, message: Message, frames: tuple[bytes, ...]) -> None:
        self.told.append(message)
        self.news.set()

    async def hears(self, kind: type[Message]) -> None:
        while not any(isinstance(message, kind) for message in self.told):
            self.news.clear()
            await self.news.wait()


def forget(file: Path) -> None:
    """Import it again the next time, as the user's next command does, which is another process."""
    for name in [
        name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(file)
    ]:
        del sys.modules[name]


async def serve(controller: Controller, stack: ExitStack) -> Worker:
    """A trainer that has published, and the rollout worker for which the strategy says whether it pulls."""
    trainer = Worker(controller.run_dir, "trainer")
    stack.callback(trainer.connection.close)
    trainer.connection.send(PolicyPublished(0, "v", "digest", 1, 0.1))
    await trainer.hears(Welcome)  # what it has said is known then, before the other is ready
    rollout = Worker(controller.run_dir, "rollout")
    stack.callback(rollout.connection.close)
    return rollout


def ignore(*_: object) -> None:
    """Not of interest here."""


class Hasty(Shell):
    """Hears a trainer that looked for it, as soon as it listens and before it has said that it is back."""

    async def open(self) -> None:
        self.is_back = asyncio.Event()
        await super().open()
        for message in (Attach("trainer", "hasty", 1, "here"), Ready(0, 0, 0)):
            self._on_message(SOMEBODY, message, ())
        self._turn()  # as when the socket is drained

    def _turn(self) -> None:
        super()._turn()
        if self.core.state.epoch == 2:
            self.is_back.set()


async def test_a_worker_that_is_back_before_the_controller_has_begun_is_not_forgotten(tmp_path):
    (tmp_path / "mine.py").write_text(RAISES)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(PluginError):
            await train(config(tmp_path))
        forget(tmp_path / "mine.py")
        (tmp_path / "mine.py").write_text(MENDED)
        shell = Hasty(
            config(tmp_path), prompts=PROMPTS, on_step=ignore, on_evaluation=ignore, on_progress=ignore,
            on_warning=ignore,
        )  # fmt: skip
        await shell.open()
        run = asyncio.create_task(shell.run())
        await shell.is_back.wait()
        assert shell.core.state.registry.workers[SOMEBODY].ready
        shell.abandon("seen")
        await run


async def train(config: Config) -> None:
    """A run that makes no step."""
    with ExitStack() as stack:  # they hear that the run is over
        async with Controller(config, prompts=PROMPTS) as controller:
            await serve(controller, stack)
            async for _ in controller.train():
                raise AssertionError


async def test_a_failing_strategy_is_named_by_file_and_line_and_the_run_goes_on_when_it_is_mended(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(RAISES)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(PluginError) as raised:
            await train(config(tmp_path))
    text = str(raised.value)
    assert f"staleness.synchronization: choose ({file}, line 2) raised IndexError" in text
    assert "given 1 SyncView, Settings; expected a list of the `id`" in text
    assert "goes on with the same command" in text
    assert "bug" not in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["reason"] == text

    file.write_text(MENDED)
    forget(file)
    said: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        again = Controller(config(tmp_path), prompts=PROMPTS, on_progress=lambda _, text: said.append(text))
        with ExitStack() as stack:
            async with again as controller:
                worker = await serve(controller, stack)
                await worker.hears(Pull)
    assert f"workers: going on with {tmp_path / 'run'}, after 0 train steps" in said
