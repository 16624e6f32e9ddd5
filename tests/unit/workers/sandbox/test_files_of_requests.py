"""The files in which a sandbox gets its request, on a machine that has no room for them."""

import asyncio
import contextlib
import errno
import os
import socket
import sys

import pytest

from workers.sandbox.box import Box
from workers.sandbox.job import Job


def files_of_requests():
    """Those that are open in this process; other tests may have left other files."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if "memfd:staleflow-sandbox" in link]


@pytest.mark.parametrize("opened", [0, 1])
def test_a_request_that_finds_no_room_for_its_files_leaves_none_open(monkeypatch, opened):
    rest, open_file = [True] * opened, os.open

    def with_little_room(path, flags, *more, **named):
        if str(path).startswith("/proc/self/fd/") and not rest:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if str(path).startswith("/proc/self/fd/"):
            rest.pop()
        return open_file(path, flags, *more, **named)

    async def ask():
        box = Box("limits", python=sys.executable)
        monkeypatch.setattr(os, "open", with_little_room)
        with pytest.raises(OSError, match="Too many open files"):
            await box._ask(Job("run", {"source": ""}), reply, None)
        monkeypatch.undo()
        return files_of_requests()

    with socket.socket(socket.AF_UNIX) as reply:
        assert asyncio.run(ask()) == []
