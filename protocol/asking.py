"""Asks a module one question in a process of its own: `python -m protocol.asking MODULE PARENT`.

Invariants: question and answer are JSON; the module's `answer(question)` runs nowhere else, so that its
imports, its output, its crashes and its hangs do not touch the asking process; a process that takes too long
is killed with all that it started, and so is one whose PARENT (the pid of the asking process) has ended; what
is left of all that it started when it has answered is killed, too, and delays no answer.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from typing import Any

from protocol.errors import Unanswered
from protocol.importing import put_users_first

ROOT = Path(__file__).resolve().parent.parent
LAST_CHARS, LAST_BYTES = 800, 3200  # shown of what the process printed, and read of it


def ask(
    module: str, question: object, *, limit_s: float, inherited: tuple[int, ...] = ()
) -> Any:  # JSON, which the asker knows the shape of
    """Ask the module. `inherited`: descriptors that its process inherits. Raises: Unanswered."""
    paths = [str(ROOT), *(entry or os.getcwd() for entry in sys.path)]
    with (
        tempfile.TemporaryFile() as printed,  # no pipe: what the module has started may keep it open
        subprocess.Popen(
            [sys.executable, "-P", "-m", "protocol.asking", module, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed,
            start_new_session=True, pass_fds=inherited,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        ) as process,
    ):  # fmt: skip
        try:
            answer, _ = process.communicate(json.dumps(question).encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Unanswered(f"took longer than {limit_s:g} s") from None
        finally:  # also after Ctrl-C
            _kill(process)
        if process.returncode or not answer:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_BYTES))
            words = printed.read().decode(errors="replace").strip()[-LAST_CHARS:]
            raise Unanswered(f"ended with exit code {process.returncode}" + (f":\n{words}" if words else ""))
    return json.loads(answer)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_with(parent: int) -> None:
    """Kill this process, with all that it started, once `parent` has ended; without pidfd, do nothing."""
    try:
        ended = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        return
    select.select([ended], [], [])
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Answer the question on standard input."""
    Thread(target=_end_with, args=(int(sys.argv[2]),), name="parent", daemon=True).start()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints to standard output prints to standard error
    question = json.load(sys.stdin)
    put_users_first()
    module = importlib.import_module(sys.argv[1])
    if hasattr(module, "prepare_process"):
        module.prepare_process()
    replies.write(json.dumps(module.answer(question)))
    replies.close()


if __name__ == "__main__":
    main()
