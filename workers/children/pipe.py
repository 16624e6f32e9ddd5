"""The pipe from a process of users' code to its worker.

Invariant: the code's prints and reads cannot touch the pipe, because standard output is redirected to
standard error here and the pipe has other descriptors; a forked copy of this process has no pipe.
"""

import os
import sys
import threading
from typing import Any

import msgpack

from workers.children.packets import CLOSED, LENGTH_BYTES, SECRET_BYTES, packet


class WorkerPipe:
    """The descriptors to the worker, moved to numbers that the user's code does not use."""

    def __init__(self) -> None:
        self.requests, self._replies = os.dup(0), os.dup(1)
        self._identity = self._look()
        self._writing = threading.Lock()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._secret = self._read(SECRET_BYTES)
        os.register_at_fork(after_in_child=self._close)

    def read_setup(self) -> list[Any]:
        """The packet that the worker sends first."""
        length = int.from_bytes(self._read(LENGTH_BYTES), "big")
        return msgpack.unpackb(self._read(length))

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += os.read(self.requests, count - len(data)) or sys.exit(1)
        return data

    def write(self, *parts: Any) -> None:
        """Send one packet; ends the process if the pipe is closed."""
        data = packet(*parts, secret=self._secret)
        with self._writing:
            if self._look() != self._identity:
                os._exit(CLOSED)  # its number may belong to another file by now
            while data:
                data = data[os.write(self._replies, data) :]

    def _look(self) -> list[tuple[int, int]]:
        try:
            return [(s.st_dev, s.st_ino) for s in map(os.fstat, (self.requests, self._replies))]
        except OSError:
            return []

    def _close(self) -> None:
        if self._look() == self._identity:
            os.close(self.requests)
            os.close(self._replies)
