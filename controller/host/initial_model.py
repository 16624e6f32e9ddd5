"""The initial model of a run: makes it with `model.factory`, and sends its small files to remote workers.

Invariants: the model is made once for a factory, its source and a seed, in a process of its own; a worker
that asks for files before they exist gets them when they do; files are read once, in a thread, and sent to
each worker once, so that no worker can stall the loop or fill memory by asking.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from controller.config.models import Config
from controller.data.initial_weights import initial_weights
from controller.host.daemon_thread import in_daemon_thread
from controller.host.run_directory import RunDirectory
from controller.host.supervisor import Supervisor
from protocol.files import is_file
from protocol.ids import PeerId
from protocol.messages import ModelFiles
from protocol.model_files import digest_of, read_model_files, vocabulary_of
from protocol.wire.descriptors import RETRY_S, are_spent
from protocol.wire.server import Server

log = logging.getLogger("staleflow.controller")


class _Files(NamedTuple):
    """The small files of the model, as sent to every worker."""

    message: ModelFiles
    contents: tuple[bytes, ...]


class InitialModel:
    """The model that every worker begins with."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        server: Server,
        *,
        on_progress: Callable[[float, str], None],
        on_fault: Callable[[PeerId, str], None],
    ) -> None:
        """`on_fault(peer, reason)` is called for a worker that asks for the files twice."""
        self._config, self._model, self._seed = config, config.model, config.run.seed
        self._run, self._server = directory, server
        self._on_progress, self._on_fault = on_progress, on_fault
        self._is_there = False
        self._files: _Files | None = None  # None until they were read
        self._reading: asyncio.Task[None] | None = None
        self._asked: dict[PeerId, bool] = {}  # workers that asked -> whether they asked twice
        self._waiting: list[PeerId] = []  # workers that got no answer yet

    @property
    def directory(self) -> Path:
        """Folder of the model."""
        return self._run.model if self._model.factory is not None else Path(self._model.path)

    async def weights(self) -> str:
        """What identifies the weights, in JSON, by which a resumed run notices that they were replaced."""
        return json.dumps(await in_daemon_thread(partial(initial_weights, self._config)))

    async def make(self, supervisor: Supervisor) -> None:
        """Make the model if it is not there, and tell the server its vocabulary.

        Raises: RunError if the factory fails; OSError if the disk does."""
        factory = self._model.factory
        if factory is not None and not self._run.has_model(origin := _origin_of(factory, self._seed)):
            await supervisor.prepare_model(
                factory=factory, directory=self._run.model, seed=self._seed, origin=origin,
                on_progress=self._on_progress,
            )  # fmt: skip
        self._server.vocabulary = vocabulary_of(self.directory)

    def send_to_waiting(self) -> None:
        """The model is there: answer the workers that have asked for its files."""
        self._is_there = True
        if self._waiting:
            self._begin_to_read()

    def send_files(self, peer: PeerId) -> None:
        """Send the files to a worker as soon as the model is there, and only once."""
        if (has_asked_again := self._asked.get(peer)) is not None:
            self._asked[peer] = True
            if not has_asked_again:  # further messages of it do not matter any more
                self._on_fault(peer, "It asked for the files of the model again; a worker asks once.")
            return
        self._asked[peer] = False
        self._waiting.append(peer)
        if self._files is not None:
            self._answer(self._files)
        elif self._is_there and self._reading is None:
            self._begin_to_read()

    def forget(self, peer: PeerId) -> None:
        """The session of this worker has ended."""
        self._asked.pop(peer, None)

    def _begin_to_read(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="files of the model")

    async def _read(self) -> None:
        """Read the files; no decision waits for it, so it has no time limit."""
        try:
            files = await in_daemon_thread(self._look)
            self._files = files if files.message.names else None  # they may be put there later
            self._answer(files)
        except OSError as error:
            if are_spent(error):
                asyncio.get_running_loop().call_later(RETRY_S, self._begin_to_read)
                return
            log.warning("The files of the model cannot be read for a remote worker: %s", error)
            self._answer(_Files(ModelFiles((), digest_of({})), ()))
        self._reading = None

    def _look(self) -> _Files:
        files = read_model_files(self.directory)
        return _Files(ModelFiles(tuple(files), digest_of(files)), tuple(files.values()))

    def _answer(self, files: _Files) -> None:
        waiting, self._waiting = self._waiting, []
        for peer in waiting:
            self._server.send(peer, *files)


def _origin_of(factory: str, seed: int) -> str:
    """The origin of a prepared model: the factory, a digest of its file if it has one, and the seed."""
    file = Path(factory.rpartition(":")[0])
    source = hashlib.sha256(file.read_bytes()).hexdigest() if is_file(file) else ""
    return json.dumps({"factory": factory, "source": source, "seed": seed}) + "\n"
