"""Calls that may block for ever, beside the event loop.

Invariant: such a call never delays the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")


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
    threading.Thread(target=of_caller.run, args=[work], name="prompts", daemon=True).start()
    return await answer
