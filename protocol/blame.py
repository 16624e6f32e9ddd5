"""Names a function of the user's for a person: its name, file and line; and words for what it raises.

Invariant: pure; what cannot be found out is left out.
"""

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from protocol.plain_text import one_line

SHOWN_CHARS = 120  # of a value in a sentence
Result = TypeVar("Result")


def where(function: object, error: BaseException | None = None) -> str:
    """The function with its file and line: the last line of that file that an error came through."""
    code = _code(function)
    if code is None:
        return shown(function)
    frame, line = error.__traceback__ if error else None, code.co_firstlineno
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == code.co_filename:
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"{code.co_qualname} ({code.co_filename}, line {line})"


def what(error: BaseException) -> str:
    """An exception in words, on one line: it stands within a sentence."""
    return f"{type(error).__name__}: {one_line(str(error))}".removesuffix(": ")


def without_stop(call: Callable[..., Result], /, *arguments: object, **named: object) -> Result:
    """Call the user's code, from within a thread whose result is awaited; returns what the call returns.

    Raises: what the call raises, and RuntimeError in the place of StopIteration: asyncio cannot hand that on,
    so that whoever awaits the thread would wait for ever.
    """
    try:
        return call(*arguments, **named)
    except StopIteration as error:
        raise RuntimeError(
            "StopIteration was raised in a thread: `next` found nothing more in an iterator. Catch it there, "
            "or give `next` a second argument to return in that case."
        ) from error


def where_class(kind: type) -> str:
    """A class with its file and line."""
    try:
        place = f"{inspect.getsourcefile(kind)}, line {inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        place = kind.__module__
    return f"{kind.__name__} ({place})"


def shown(value: object) -> str:
    """A value, shortened."""
    return f"{value!r:.{SHOWN_CHARS}}"


def _code(function: Any) -> CodeType | None:  # whatever the user has named
    """The code object behind a function, a method, a functools.partial or an object with `__call__`."""
    function = inspect.unwrap(getattr(function, "func", function))
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
