"""Starts the view of a run beside it: the link is there at once, and a process waits for the first page.

Invariants: a failure is one warning, and the run goes on without a view; the process ends with the run,
however that ends; a resumed run has the same token and, unless it is taken, the same port, so that open pages
find it again; no web framework is imported in the run's process.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from controller.config.models import ViewSettings
from controller.view.door.listener import left_token, listen
from protocol.errors import ConfigError
from protocol.files import OTHERS, for_owner_only
from protocol.importing import python_path

DOORKEEPER = Path(__file__).with_name("doorkeeper.py")
HOST = "127.0.0.1"
NICE = 10  # training comes first
TOKEN_BYTES = 32
END_S = 2.0  # for the process to end with the run; it has nothing to save
TOKEN_VARIABLE = "STALEFLOW_VIEW_TOKEN"
"""Environment variable with the token for the waiting process: only its owner can read it."""

log = logging.getLogger("staleflow.view")


@dataclass(frozen=True, slots=True)
class ViewLink:
    """The link to a run's view."""

    address: str
    token: str
    file: Path | None
    """File with the token, for users who may read the run; None if it cannot be written."""

    def in_words(self, *, shows_token: bool) -> str:
        """The link as text; without `shows_token`, for a log or a pipe, with the name of the token's file."""
        if shows_token or self.file is None:
            return f"View: {self.address}?token={self.token}"
        return f"View: {self.address}?token=... (the token is in {self.file})"


@contextlib.asynccontextmanager
async def view_beside(
    run: Path, settings: ViewSettings, *, on_warning: Callable[[str], None]
) -> AsyncIterator[ViewLink | None]:
    """A context with the link of a view of this run; with None, after a warning, if it cannot be started."""
    with contextlib.ExitStack() as stack:
        try:
            link, process, bound = await _start(run, settings, stack)
        except (ConfigError, OSError) as error:
            on_warning(f"There is no view of this run, which goes on without: {error}")
            yield None
            return
        watch = asyncio.create_task(_watch(process, bound, run, on_warning), name="view")
        try:
            yield link
        finally:
            watch.cancel()
            stack.close()  # by this the process knows that the run has ended
            await _end(process)


def waiting_command(run: Path, settings: ViewSettings, listener: int, life: int) -> list[str]:
    """The command of the process that waits for a page, with these open files."""
    words = [str(listener), str(life)]
    view = [sys.executable, "-P", "-m", "controller.view.door.resident", *words, str(run)]
    view.append(settings.model_dump_json())
    return [sys.executable, "-I", "-S", str(DOORKEEPER), *words, *view]


async def _start(
    run: Path, settings: ViewSettings, stack: contextlib.ExitStack
) -> tuple[ViewLink, Process, socket.socket]:
    """The link, the process that waits, and where it listens.

    Raises: ConfigError or OSError if there can be no view.
    """
    token, last = _remembered(run)
    bound = stack.enter_context(_listen(settings.port, last))
    port = bound.getsockname()[1]
    if port != last:  # pages that are open have shown the token to whoever listens at the last port now
        token = secrets.token_urlsafe(TOKEN_BYTES)
    _remember(run, token, port)
    file = stack.enter_context(left_token(run, token, is_own=True))
    read, write = os.pipe()
    stack.callback(os.close, write)
    try:
        log_file = stack.enter_context(_log_file(run))
        process = await asyncio.create_subprocess_exec(
            *waiting_command(run, settings, bound.fileno(), read), stdin=DEVNULL, stdout=log_file,
            stderr=log_file, pass_fds=(bound.fileno(), read), start_new_session=True,
            env=_environment() | {TOKEN_VARIABLE: token},
        )  # fmt: skip
    finally:
        os.close(read)
    with contextlib.suppress(OSError):  # a system that forbids it
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    link = ViewLink(f"http://{HOST}:{port}/", token, file)
    return link, process, bound


def _listen(wanted: int, last: int | None) -> socket.socket:
    """A listening socket at the wanted port, else the last one, else a free one. Raises: ConfigError."""
    if wanted:
        return listen(HOST, wanted, key="view.port")
    if last is not None:
        with contextlib.suppress(ConfigError):  # somebody else has it now
            return listen(HOST, last)
    return listen(HOST, None, key="view.port")


def _log_file(run: Path) -> IO[bytes]:
    return open(run / "logs" / "view.log", "ab", opener=for_owner_only)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}


def _memory(run: Path) -> Path:
    """The file with token and port: beside the run, so that a copy of the run does not include the token."""
    return run.parent / f".{run.name}.view"


def _remembered(run: Path) -> tuple[str, int | None]:
    """Token and port of the run's last life, or a new token: what others can read, or wrote, is none."""
    try:
        with open(_memory(run), opener=_without_links) as file:
            told = os.fstat(file.fileno())
            is_secret = told.st_uid == os.geteuid() and not told.st_mode & OTHERS
            found = json.load(file) if is_secret else {}
        token, port = found["token"], found["port"]
    except (OSError, ValueError, KeyError, TypeError):
        token, port = "", None
    if not (isinstance(token, str) and len(token) >= TOKEN_BYTES and isinstance(port, int)):
        return secrets.token_urlsafe(TOKEN_BYTES), None
    return token, port


def _remember(run: Path, token: str, port: int) -> None:
    with (
        contextlib.suppress(OSError),  # then the next life has another link
        open(_memory(run), "a", opener=_for_owner_only_without_links) as file,
    ):
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            file.truncate(0)
            json.dump({"token": token, "port": port}, file)


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # nor does a pipe keep the run waiting


def _for_owner_only_without_links(path: str, flags: int) -> int:
    return for_owner_only(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


async def _watch(
    process: Process, bound: socket.socket, run: Path, on_warning: Callable[[str], None]
) -> None:
    code = await process.wait()
    bound.close()  # else a browser would wait for an answer that nobody gives
    on_warning(
        f"The view has ended with exit code {code} (its log is {run / 'logs' / 'view.log'}); the run goes "
        f"on. `launch.py view {run}` opens another one."
    )


async def _end(process: Process) -> None:
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        log.warning("The view did not end with the run, and was killed.")
        process.kill()
        await process.wait()
