"""Handles Ctrl-C, SIGTERM and SIGHUP while another program installs or compiles, which ends with this one.

Invariants: standard library only; the first signal ends what is done here, and later ones do not disturb the
cleanup; a signal that was ignored before, as by nohup, stays ignored; nothing that was started is left.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Stopping:
    """A context in which the first signal raises KeyboardInterrupt, and later ones do nothing.

    Without a signal, the previous handlers are restored at the end. After one, the process has to end.
    """

    def __init__(self) -> None:
        self._has_come = self._is_put_off = False
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self._before = {
            number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)
        }

    def __enter__(self) -> "Stopping":
        for number in self._before:
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        # blocked meanwhile: Python prints a traceback for a signal that arrives just as it is set to ignored
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_IGN if self._has_come else handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """A context that postpones signals to its end, so that whatever was started in it can be ended."""
        self._is_put_off = True
        try:
            yield
        finally:
            self._is_put_off = False
        if self._has_come:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        if self._has_come:
            return
        self._has_come = True
        if not self._is_put_off:
            raise KeyboardInterrupt


@contextlib.contextmanager
def started(
    command: Sequence[str], stopping: Stopping, *, folder: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process whose output and errors are its `stdout`; at the end of the context it is killed.

    So is all that it has started. `folder`: its working directory; None for this process's. Raises: OSError.
    """
    with contextlib.ExitStack() as ended:
        with stopping.put_off():  # else a process could be left that was started but is not known yet
            process = ended.enter_context(
                subprocess.Popen(
                    command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    errors="replace", start_new_session=True,
                )
            )  # fmt: skip
            ended.callback(_end, process)
        yield process


def kill_session(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process and all that it has started; nothing if all of it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[str]) -> None:
    kill_session(process)
    process.wait()


def give_up(environment: Path, *, is_new: bool, is_whole: bool) -> str:
    """Remove a half-made new environment; returns a sentence on what is left.

    `is_whole`: nothing was changed in one that was there before.
    """
    words = f"Stopped while installing; no process is left, and {environment} is "
    if is_new:
        shutil.rmtree(environment, ignore_errors=True)
        return words + "removed. Start again to install; what was downloaded is kept."
    if is_whole:
        return words + "as it was. Start again to install; what was downloaded is kept."
    return words + "unfinished, as it was there before. Start again to finish it."
