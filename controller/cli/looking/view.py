"""`launch.py view RUN...`: serves pages that show runs, in a process of its own.

Invariant: runs are not disturbed: journals are only read, and orders are sent as by `launch.py control`.
"""

import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.needs import require_extras
from controller.cli.say import say
from protocol.errors import ConfigError, StaleFlowError
from protocol.files import is_dir

if TYPE_CHECKING:
    from controller.view.shown_run import ShownRun


def view(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run directories, alive or not, or copies of them.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Default: the first free one from 8470 on.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address of this machine to listen at.")] = "127.0.0.1",
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE.html", help="Write the run as one file instead."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, and give no orders.")] = False,
    opens: Annotated[bool, typer.Option("--open", help="Open the link in this machine's browser.")] = False,
) -> None:
    """Show runs in a browser: now, at any earlier event, and the model's responses."""
    require_extras("web", reason="launch.py view needs the extra web")
    from controller.view.door.access import Access
    from controller.view.door.listener import left_token, listen
    from controller.view.door.server import serve
    from controller.view.orders import give
    from controller.view.shown_run import ShownRun
    from controller.view.site import Site

    shown = [ShownRun(run) for run in runs]
    _refuse_unreadable(shown)
    if export is not None:
        _write(shown, export)
        return
    bound = listen(host, port)
    access = Access(host=host, port=bound.getsockname()[1])
    site = Site(shown, access, order=None if read_only else give)
    base = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}/"
    with _ending_in_order(), left_token(shown[0].path, access.token, is_own=False) as file:
        tell = partial(_tell, base, access.token, file, opens=opens)
        asyncio.run(serve(site.app(), bound, on_ready=tell))


def _tell(base: str, token: str, file: Path | None, *, opens: bool) -> None:
    """Print the link of the view; in a log or a pipe, the token's file instead of the token."""
    if sys.stdout.isatty() or file is None:
        say(f"View: {base}?token={token}")
    else:
        say(f"View: {base}?token=... (the token is in {file})")
    if opens and not webbrowser.open(f"{base}?token={token}"):
        say("No browser is known on this machine; open the link yourself.", is_error=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM, or a closed terminal, end the process with cleanup."""
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _leave)}  # the server ends, and raises it again
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hang_up(number: int, frame: object) -> None:
    """The terminal was closed: end as by SIGTERM."""
    signal.raise_signal(signal.SIGTERM)


def _leave(number: int, frame: object) -> None:
    """End with the exit code of an unhandled signal, after cleanup."""
    raise SystemExit(128 + number)


def _refuse_unreadable(shown: "list[ShownRun]") -> None:
    """Print which runs cannot be read. Raises: the first one's error, if no run can be read."""
    troubles: list[StaleFlowError] = []
    for one in shown:
        try:
            one.facts()
        except StaleFlowError as error:
            troubles.append(error)
    if len(troubles) == len(shown):
        raise troubles[0]
    for trouble in troubles:
        say(f"One run is shown as unreadable. {trouble}", is_error=True)


def _write(shown: "list[ShownRun]", file: Path) -> None:
    """Write a run as one file. Raises: ConfigError if there are several runs, or it cannot be written."""
    from controller.cli.looking.history import ReadingProgress
    from controller.view.one_file import one_file

    if len(shown) != 1:
        raise ConfigError(f"--export writes one run, and {len(shown)} are given; call it once for each.")
    if is_dir(file) or not os.access(file.parent, os.W_OK):  # before the run is read, which takes a while
        raise ConfigError(
            f"{file} cannot be written: expected a file in a folder that exists and that you may write to. "
            "Give another file."
        )
    try:
        file.write_text(one_file(shown[0], tell=ReadingProgress().say))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}. Give another file.") from error
    size_mb = file.stat().st_size / 1e6
    say(f"{shown[0].name} is in {file}, {size_mb:.1f} MB; any browser opens it, without a network.")
