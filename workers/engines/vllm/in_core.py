"""Set-up of vLLM's own processes, if the engine core is not in the worker's process.

Invariants: the core and its workers end when the rollout worker that started them has ended, for whatever
reason, and ignore other signals that a terminal or a scheduler sends to the whole job: the worker hands back
first. The first exception that vLLM logs in any of them is kept in a file, for the worker's error message.
"""

import logging
import os
import select
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER, WORDS = "STALEFLOW_VLLM_OWNER", "STALEFLOW_VLLM_WORDS"
MOST_WORDS = 1500


@contextmanager
def environment(words: Path, *, is_eager: bool) -> "Iterator[None]":
    """Environment variables for processes that are started in this context."""
    given = {OWNER: str(os.getpid()), WORDS: str(words)}
    if is_eager:
        given["TORCH_COMPILE_DISABLE"] = "1"  # vLLM compiles single operators otherwise, for a minute
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def begin() -> None:
    """Tie this process to its rollout worker, unless it is the rollout worker."""
    owner, words = int(os.environ.get(OWNER, os.getpid())), os.environ.get(WORDS)
    if owner == os.getpid() or words is None:
        return
    if current_thread() is main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    logging.getLogger("vllm").addHandler(_FirstWords(Path(words)))
    _end_with(owner)


def permit_amx() -> None:
    """Ask Linux for the registers of AMX, on a CPU that has them.

    A process gets them on request alone. vLLM 0.32 takes its kernels for them and never asks: attention in
    bfloat16 ends the process by an illegal instruction, unless torch has asked for a product of its own.
    """
    import torch  # late: this module is imported before vLLM's environment is set

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def last_words(error: BaseException) -> str:
    """The innermost cause on one line, shortened; vLLM wraps the errors of its workers."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:MOST_WORDS].rstrip(".") + "."


class _FirstWords(logging.Handler):
    """Keeps the first logged exception; later ones are its consequences."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            with suppress(OSError), self._path.open("x") as file:
                file.write(f"{type(error).__name__}: {last_words(error)}")


def _end_with(owner: int) -> None:
    if not hasattr(os, "pidfd_open"):
        return
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)

    def mourn() -> None:
        select.select([descriptor], [], [])
        if parent != owner and os.getppid() == parent:  # a device's process, below the core's
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=mourn, name="owner", daemon=True).start()
