"""Serves the view beside a run while pages are open, then becomes the waiting process again.

A process: `python -m controller.view.door.resident LISTENER LIFE RUN SETTINGS`, started by doorkeeper.py.
Invariants: its memory is free when it waits again, as the process is then another program; it ends with the
run; it writes only its findings about the history (`kept_past.py`).
"""

import asyncio
import os
import socket
import sys
from pathlib import Path

from controller.config.models import ViewSettings
from controller.view import orders
from controller.view.door.access import Access
from controller.view.door.beside import HOST, TOKEN_VARIABLE, waiting_command
from controller.view.door.server import serve
from controller.view.shown_run import ShownRun
from controller.view.site import Site

IDLE_S = 300.0


def main(arguments: list[str]) -> None:
    """Serve, then become the process that waits."""
    listener, life, run = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    settings = ViewSettings.model_validate_json(arguments[3])
    asyncio.run(_serve(run, settings, listener, life))
    for descriptor in (listener, life):
        os.set_inheritable(descriptor, True)
    command = waiting_command(run, settings, listener, life)
    os.execv(command[0], command)


async def _serve(run: Path, settings: ViewSettings, listener: int, life: int) -> None:
    bound = socket.socket(fileno=os.dup(listener))  # the server closes its own
    bound.setblocking(False)
    access = Access(host=HOST, port=bound.getsockname()[1], token=os.environ[TOKEN_VARIABLE])
    shown = ShownRun(run, keyframes_bytes=settings.keyframes_mb << 20)
    site = Site([shown], access, order=orders.give if settings.controls else None)
    # nothing is to be saved, and a thread may be deep in the journal
    asyncio.get_running_loop().add_reader(life, os._exit, 0)
    await serve(site.app(), bound, on_ready=lambda: None, idle_s=IDLE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
