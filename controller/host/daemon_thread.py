"""Calls that may block for ever, beside the event loop.

Invariants: such a call never delays the end of the process; one for which the machine has no room now waits.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from protocol.wire.descriptors import RETRY_S

Result = TypeVar("Result")
log = logging.getLogger("staleflow.controller")

NO_ROOM = (
    "it is tried again until the machine has room for one. Allow more processes and threads (`ulimit -u`, or "
    "the limit of pids of the container)."
)


async def in_daemon_thread(call: Callable[[], Result]) -> Result:
    """What `call` returns or raises, from a daemon thread: those of the default executor are joined at exit.

    StopIteration, which a future cannot carry, is raised as RuntimeError.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not answer.cancelled():
            answer.set_result(result) if error is None else answer.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except StopIteration as raised:  # a future refuses it, and the caller would wait for ever
            error = RuntimeError("The call raised StopIteration.")
            error.__cause__ = raised
        except BaseException as raised:  # one that escaped would leave the caller waiting for ever
            error = raised
        with suppress(RuntimeError):  # the loop is closed: the run ended while the call was blocked
            loop.call_soon_threadsafe(settle, result, error)

    of_caller = copy_context()  # the call logs to the caller's run
    is_told = False
    while True:
        try:
            threading.Thread(target=of_caller.run, args=[work], name="prompts", daemon=True).start()
        except RuntimeError as error:  # as Python says it
            if not is_told:
                log.warning("%s: %s", error, NO_ROOM)
            is_told = True
            await asyncio.sleep(RETRY_S)
        else:
            return await answer
