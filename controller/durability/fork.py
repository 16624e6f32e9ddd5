"""Checks the core and makes its image in a forked child process, while the event loop goes on.

Invariants: the loop pauses only for the fork, which copies page tables and no objects; no image is made of a
core that breaks an invariant; the child touches only its memory and one pipe: first of all it closes every
other descriptor (it must not keep a port or a lock of the controller alive), it runs no finalizer, and ends
without cleaning up, at the latest when its parent has closed the pipe; the parent reaps it.
Source: BGSAVE of Redis.
"""

import asyncio
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from controller.core.core import Core
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack
from controller.durability.violation import violation_of

IS_POSSIBLE = sys.platform == "linux"  # on macOS a fork of a process with threads can do next to nothing
READ_BYTES = 1 << 20
BROKEN = 2  # exit code when the core breaks an invariant, which the child writes in place of the image


class Picture:
    """One image that a child process is making."""

    def __init__(self, core: Core) -> None:
        """Fork the child. Raises: OSError if the system has no room for another process."""
        self.violation = ""
        """The invariant that the core breaks, once it is known."""
        self._parts: list[bytes] = []
        self._on_image: Callable[[bytes], None] | None = None
        reader, writer = os.pipe()
        try:
            with warnings.catch_warnings():  # of Python 3.12 and later: this child takes no lock
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
            if not self._pid:
                _be_the_child(core, writer)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._reader = reader

    def start(self, on_image: Callable[[bytes], None]) -> None:
        """Have the running loop call `on_image` with the packed image; with b"" if there is none."""
        self._on_image = on_image
        os.set_blocking(self._reader, False)
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def wait(self) -> bytes:
        """Wait for the packed image, instead of `start`."""
        while part := os.read(self._reader, READ_BYTES):
            self._parts.append(part)
        return self._end()

    def close(self) -> None:
        """Give the image up, unless it is complete."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._on_image = None
            self._end()

    def _read(self) -> None:
        part = os.read(self._reader, READ_BYTES)
        if part:
            self._parts.append(part)
            return
        on_image, image = self._on_image, self._end()
        if on_image is not None:
            on_image(image)

    def _end(self) -> bytes:
        if self._on_image is not None or not os.get_blocking(self._reader):
            asyncio.get_running_loop().remove_reader(self._reader)
        os.close(self._reader)
        _, status = os.waitpid(self._pid, 0)  # the child closed its end or was killed: it is ending
        self._pid = 0
        told = b"".join(self._parts)
        if os.waitstatus_to_exitcode(status) == BROKEN:
            self.violation = told.decode()
        return told if status == 0 else b""


def _be_the_child(core: Core, writer: int) -> NoReturn:
    """Make the image, write it and end the child; whatever happens, never go on as the controller."""
    code = 1
    with suppress(BaseException):
        gc.disable()
        os.closerange(3, writer)
        os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
        violation = violation_of(core)
        rest = memoryview(violation.words.encode() if violation else pack(Freezer().freeze(core)))
        while rest:
            rest = rest[os.write(writer, rest) :]
        code = BROKEN if violation else 0
    os._exit(code)
