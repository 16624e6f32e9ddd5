"""Scripted workers over real sockets, attached to a real controller in the same loop."""

import asyncio
import json
from pathlib import Path
from typing import Any

from controller.config.models import Config
from protocol.messages import Beat, Close, Message, Reattach, Welcome
from protocol.wire.connection import Connection
from tests.support.scripted import VOCABULARY, Scripted
from tests.support.scripted_run import config_of

WORK_S = 0.005  # between two looks at what a worker does by itself
PROMPTS = [{"prompt": f"number {n}"} for n in range(200)]


def settings(folder: Path, *, steps: int, **sections: Any) -> Config:
    """A run whose workers come by themselves, with a model that has nothing but a vocabulary."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    return config_of(
        steps=steps,
        run={"dir": str(folder), "name": "run"},
        model={"path": str(model)},
        logging={"console": "quiet"},
        controller={"replace_s": 0.3, "lease_s": 30.0},
        **sections,
    )


class Peer:
    """One scripted worker and its line."""

    def __init__(self, run: Path, worker: Scripted) -> None:
        self.worker = worker
        self.close: Close | None = None
        """What it was closed with."""
        self.closed, self.busy = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        endpoint = (run / "address").read_text().strip()
        self._line = Connection(endpoint, on_message=self._hear, on_fault=self._blame)
        self._line.start()
        self._line.send(worker.attach())

    def leave(self) -> None:
        """Free the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self.closed.set()
        self._line.close()

    def _hear(self, message: Message, frames: tuple[bytes, ...]) -> None:
        if isinstance(message, Welcome):
            self._say(self.worker.begin())
            self._work()
        elif isinstance(message, Close | Reattach):
            self._line.send(Beat())  # the acknowledgement that the controller waits for
            self.close = message if isinstance(message, Close) else None
            self.closed.set()
            self.busy.set()
        elif not isinstance(message, Beat) and not self.closed.is_set():
            self.busy.set()
            self._say(self.worker.answer(message, frames))

    def _work(self) -> None:
        if self.closed.is_set():
            return
        self._say(self.worker.work())
        self._line.send(Beat())
        self._timer = asyncio.get_running_loop().call_later(WORK_S, self._work)

    def _say(self, said: Any) -> None:
        for message, frames in said:
            self._line.send(message, frames)

    def _blame(self, reason: str) -> None:
        raise AssertionError(f"The controller broke the protocol: {reason}")
