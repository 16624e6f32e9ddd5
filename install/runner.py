"""Runs pip or uv, and prints what it is doing while it is silent.

Invariants: standard library only; when run_installer returns or raises, every process of the installer's
session has ended or was killed.
"""

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from install.stopping import Stopping, kill_session, started

LAST_LINES = 15
SILENCE_S = 5.0  # of the installer, until a line says that it still works
UNPACKING = (
    "Installing collected packages:",
    "Resolved ",
)  # pip and uv change nothing before this
UNCHANGED = "nothing was changed"
FIRST_WORDS = (
    "Collecting", "Downloading", "Using cached", "Building", "Built", "Installing", "Installed",
    "Successfully", "Resolved", "Prepared", "Uninstalled",
)  # fmt: skip


def run_installer(
    command: list[str],
    environment: Path,
    say: Callable[[str], None],
    limit_s: float | None,
    stopping: Stopping,
) -> tuple[int, deque[str]]:
    """Run the installer; returns its exit code and last lines, and the line about unpacking if it had one.

    Raises: KeyboardInterrupt, with UNCHANGED if the installer is known to have changed nothing.
    """
    last: deque[str] = deque(maxlen=LAST_LINES)
    unpacking: list[str] = []
    watch = _Watch(environment, say)
    with contextlib.ExitStack() as ended:
        watch.start()
        ended.callback(watch.stop)
        pip = ended.enter_context(started(command, stopping))
        limit = threading.Timer(limit_s or threading.TIMEOUT_MAX, kill_session, [pip])
        limit.daemon = True
        limit.start()
        ended.callback(limit.cancel)
        assert pip.stdout is not None
        line = ""
        try:
            for line in pip.stdout:
                last.append(line.rstrip())
                unpacking += [line.rstrip()] if line.startswith(UNPACKING) else []
                watch.heard(line)
                if line.lstrip().startswith(FIRST_WORDS):
                    say(f"  {line.strip().partition(' (from')[0][:110]}")
            pip.wait()
        except KeyboardInterrupt:
            kill_session(pip)
            is_begun = unpacking or _has_begun(line, pip.stdout)
            raise KeyboardInterrupt(*() if is_begun else (UNCHANGED,)) from None
    return pip.returncode, last if not unpacking or unpacking[0] in last else deque([*unpacking, *last])


def _has_begun(line: str, rest: IO[str]) -> bool:
    """Whether the last line or what a killed installer has left to read tells of unpacking, or may do so."""
    os.set_blocking(rest.fileno(), False)  # what it has started may hold the pipe open, and live on
    try:
        return any(one.startswith(UNPACKING) for one in itertools.chain([line], rest))
    except (OSError, TypeError):  # nothing to read, and not at its end: releases of Python differ
        return True


class _Watch(threading.Thread):
    """Prints what pip is doing while it is silent, as when it unpacks for minutes."""

    def __init__(self, environment: Path, say: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="watch over pip")
        self._environment, self._say = environment, say
        self._was_heard, self._is_over = threading.Event(), False
        self._line, self._packages, self._there = "no word of it yet", list[str](), 0
        self._since = time.monotonic()

    def heard(self, line: str) -> None:
        """Note a line of pip, which says what it is doing."""
        self._line, self._since = line.strip().partition(" (from")[0][:80], time.monotonic()
        if line.startswith(UNPACKING[0]):
            self._packages = line.partition(":")[2].replace(" ", "").strip().split(",")
            self._there = self._count()
        self._was_heard.set()

    def stop(self) -> None:
        """End the thread."""
        self._is_over = True
        self._was_heard.set()
        self.join()

    def run(self) -> None:
        while not self._is_over:
            if self._was_heard.wait(SILENCE_S):
                self._was_heard.clear()
                continue
            text, for_s = self._line, time.monotonic() - self._since
            if self._packages:
                done = min(max(0, self._count() - self._there), len(self._packages) - 1)
                text = f"unpacking {self._packages[done]}, {done + 1} of {len(self._packages)} packages"
            self._say(f"  still at it, for {for_s:.0f} s: {text}")

    def _count(self) -> int:
        """Number of packages in the environment: pip writes the metadata of each last."""
        return sum(1 for _ in self._environment.glob("lib*/python*/site-packages/*.dist-info/RECORD"))
