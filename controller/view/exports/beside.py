"""Starts the process that sends a run's lines and notifications, if the configuration names receivers.

Invariants: a failure is one warning, and the run goes on; settings travel over a pipe, as a URL may hold a
secret; the process ends with the run.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from controller.config.models import Config
from controller.view.exports.outgoing import END_S, Outgoing, identity
from protocol.files import for_owner_only, plain_only
from protocol.importing import python_path

PROGRAM = (sys.executable, "-P", "-m", "controller.view.exports.outgoing")
NICE = 10
MORE_S = 5.0  # than it gives itself
AT_ONCE = 65_536  # bytes
MOST_CHARS = 2_000  # of what it says in one line: an error of a tracker may have any length
UTF8 = getincrementaldecoder("utf-8")
RUN_ID = re.compile(r"[\w-]{1,64}", re.ASCII)  # trackers name folders by it, and remove them

Tell = Callable[[str], None]


def outgoing(run: Path, config: Config, trackers: list[str] | None = None) -> Outgoing | None:
    """What this run sends, and to whom; None without receivers. It has not written its status yet."""
    notify = config.notify
    wanted = list(config.logging.trackers) if trackers is None else trackers
    if not (wanted or notify.url or notify.command):
        return None
    written: dict[str, Any] = config.as_written().model_dump(mode="json")
    return Outgoing(
        str(run), run_id(run), written, wanted, notify.url, list(notify.command), list(notify.events),
        identity(run / "status.json"),
    )  # fmt: skip


def run_id(run: Path) -> str:
    """The id of this run for trackers, the same after a resume.

    An id in the file that could name another folder is replaced.
    """
    file = run / "trackers.json"
    try:
        with open(file, opener=plain_only) as kept:
            found = json.load(kept)["id"]
        if not RUN_ID.fullmatch(found):
            raise ValueError
        return str(found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        made = secrets.token_hex(6)
        with (
            contextlib.suppress(OSError),  # a folder that is only read: it is named anew each time
            open(file, "w", opener=_without_links) as written,
        ):
            written.write(json.dumps({"id": made}) + "\n")
        return made


def _without_links(path: str, flags: int) -> int:
    """In the run directory of somebody else a link may have the name of a file that is to be written."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@contextlib.asynccontextmanager
async def exports_beside(run: Path, config: Config, *, on_warning: Tell) -> AsyncIterator[None]:
    """A context in which the process runs, if there are receivers."""
    wanted = outgoing(run, config)
    if wanted is None:
        yield
        return
    try:
        process = await _start(run, wanted)
    except OSError as error:
        on_warning(f"Nothing is sent to trackers or people, and the run goes on: {error}")
        yield
        return
    hearing = asyncio.create_task(_hear(process, run, on_warning), name="exports")
    try:
        yield
    finally:
        await _end(process, hearing, on_warning)


async def _start(run: Path, wanted: Outgoing) -> Process:
    """Raises: OSError."""
    environment = os.environ | {"PYTHONPATH": python_path(os.getcwd()), "PYTHONUNBUFFERED": "1"}
    with _log_file(run) as log:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, stdin=PIPE, stdout=PIPE, stderr=log, env=environment, start_new_session=True
        )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(wanted)).encode() + b"\n")
    return process


def _log_file(run: Path) -> IO[bytes]:
    return open(run / "logs" / "exports.log", "ab", opener=for_owner_only)


async def _hear(process: Process, run: Path, on_warning: Tell) -> None:
    """Pass lines of the process on as warnings, and warn if it ends with an error."""
    assert process.stdout is not None
    decoder, rest = UTF8(errors="replace"), ""
    while part := await process.stdout.read(AT_ONCE):  # in pieces: a line may have any length
        *lines, rest = (rest + decoder.decode(part)).split("\n")
        rest = rest[:MOST_CHARS]
        for line in lines:
            on_warning(line[:MOST_CHARS].strip())
    if last := rest.strip():
        on_warning(last)
    code = await process.wait()
    if code:
        on_warning(
            f"What sends to trackers and people has ended with exit code {code}; its log is "
            f"{run / 'logs' / 'exports.log'}. The run goes on."
        )


async def _end(process: Process, hearing: "asyncio.Task[None]", on_warning: Tell) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S + MORE_S):
            await asyncio.shield(hearing)
    except TimeoutError:
        on_warning("What sends to trackers and people did not end with the run, and was killed.")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what a tracker has started
        hearing.cancel()
        await process.wait()
