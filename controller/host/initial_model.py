"""The initial model of a run: makes it where a factory is named, and gives its files to machines without it.

Invariants: the model is made once for a factory, its source and a seed, in a process of its own; who asks
for its files before it is there gets them then.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from controller.config.models import Config
from controller.host.run_directory import RunDirectory, origin_of
from controller.host.supervisor import Supervisor
from protocol.ids import PeerId
from protocol.messages import ModelFiles
from protocol.model_files import digest_of, read_model_files, vocabulary_of
from protocol.wire.descriptors import RETRY_S, are_spent
from protocol.wire.server import Server

log = logging.getLogger("staleflow.controller")


class InitialModel:
    """What every worker begins with."""

    def __init__(
        self,
        config: Config,
        directory: RunDirectory,
        server: Server,
        *,
        on_progress: Callable[[float, str], None],
    ) -> None:
        self._model, self._seed = config.model, config.run.seed
        self._run, self._server = directory, server
        self._on_progress = on_progress
        self._waiting: list[PeerId] | None = []  # for its files; None once it is there

    @property
    def directory(self) -> Path:
        """Where it lies, or will."""
        return self._run.model if self._model.factory is not None else Path(self._model.path)

    async def make(self, supervisor: Supervisor) -> None:
        """Make it if it is not there, and tell the server its vocabulary.

        Raises: RunError if the factory fails; OSError if the disk does."""
        factory = self._model.factory
        if factory is not None and not self._run.has_model(origin_of(factory, self._seed)):
            await supervisor.prepare_model(
                factory=factory, directory=self._run.model, seed=self._seed, on_progress=self._on_progress
            )
        self._server.vocabulary = vocabulary_of(self.directory)

    def send_to_waiting(self) -> None:
        """It is there: answer who has asked for its files."""
        waiting, self._waiting = self._waiting or [], None
        for peer in waiting:
            self._send(peer)

    def send_files(self, peer: PeerId) -> None:
        """Give its files to a machine without it, as soon as it is there."""
        if self._waiting is None:
            self._send(peer)
        else:
            self._waiting.append(peer)

    def _send(self, peer: PeerId) -> None:
        """Read here, as no decision hangs on it; a few megabytes, once."""
        try:
            files = read_model_files(self.directory)
        except OSError as error:
            if are_spent(error):
                asyncio.get_running_loop().call_later(RETRY_S, self._send, peer)
                return
            log.warning("The files of the model cannot be read for a remote worker: %s", error)
            files = {}
        self._server.send(peer, ModelFiles(tuple(files), digest_of(files)), tuple(files.values()))
