"""Finds the model's directory on a worker's machine, or fetches its small files from the controller."""

import asyncio
import logging
from pathlib import Path

from protocol.errors import RemoteError
from protocol.files import is_file
from protocol.messages import FetchModel, ModelFiles, Role
from protocol.model_files import keep_model_files
from protocol.settings import WorkerSettings
from workers.link.link import Link

logger = logging.getLogger("workers")


def model_directory(settings: WorkerSettings) -> str:
    """The configured model directory: `model.path`, in the run directory if a factory makes it there."""
    base = Path(settings.run_dir) if settings.model.factory is not None else Path.cwd()
    return str(base / settings.model.path)


async def find_model(settings: WorkerSettings, link: Link, role: Role) -> str:
    """The model's directory; without one, a directory with its small files, sent by the controller.

    Raises: LinkClosed, RemoteError. If the controller has no model either, returns `model.path` all the same:
    an engine of the user's may not need one.
    """
    directory = model_directory(settings)
    # a worker of a shared device is beside the controller, and may be told to take it before an answer comes
    shares_device = settings.is_colocated and role in ("rollout", "trainer")
    if is_file(Path(directory) / "config.json") or shares_device:
        return directory
    link.send(FetchModel())
    message, frames = await link.receive()
    if not isinstance(message, ModelFiles):
        raise RemoteError(f"The controller answered FetchModel with {type(message).__name__}.")
    if not message.names or is_file(Path(directory) / "config.json"):  # it was made just now
        return directory
    kept = await asyncio.to_thread(keep_model_files, message.names, frames, message.digest)
    level = logging.INFO
    if settings.model.path != link.settings.model.path:  # set for this machine, perhaps mistyped
        level, directory = logging.WARNING, f"model.path={directory}, which was given to this worker"
    text = "There is no model at %s; its configuration and tokenizer are now in %s."
    logger.log(level, text, directory, kept)
    return str(kept)
