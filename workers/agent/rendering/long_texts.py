"""Encodes long texts in a thread, so that the event loop is not blocked.

Invariants: the thread gives the same tokens as the loop would; loop and thread have separate renderers, since
a tokenizer must not be used by two threads at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from workers.agent.messages import texts_of
from workers.agent.rendering.renderer import Past, Renderer
from workers.agent.rendering.spelling import Messages, Tools

MAX_QUICK_CHARS = 1 << 15
"""Longest text that the event loop encodes itself, in some hundredths of a second."""

Result = TypeVar("Result")


class LongText(Exception):
    """The text to encode has more than MAX_QUICK_CHARS characters."""


class QuickRenderer:
    """A renderer for the event loop, which refuses long texts."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.text, self.parse = renderer.text, renderer.parse  # for sampled tokens

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        """As in every renderer. Raises: LongText."""
        _check_length(messages, tools)
        return self._renderer.render(messages, tools)

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        """As in every renderer; the past is not encoded again. Raises: LongText."""
        _check_length(messages)
        return self._renderer.extend(last, messages, tools, past=past)

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """As in every renderer."""
        return type(self)(self._renderer.with_template_kwargs(kwargs))


class LongTexts:
    """A thread that encodes long texts, one after the other."""

    def __init__(self, make: Callable[[], Renderer | None]) -> None:
        """`make`: makes the thread's renderer, in the thread, for the first long text."""
        self._make = make
        self._renderer: Renderer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long texts")

    async def run(self, work: Callable[[Renderer | None], Result]) -> Result:
        """The result of `work` with the thread's renderer. Raises: whatever it, or making one, raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def close(self) -> None:
        """Accept no further texts; the process waits for the current one at its end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[Renderer | None], Result]) -> Result:
        if self._renderer is None:
            self._renderer = self._make()
        return work(self._renderer)


def _check_length(*parts: Any) -> None:
    """Raises: LongText."""
    if sum(len(text) for part in parts for text in texts_of(part or ())) > MAX_QUICK_CHARS:
        raise LongText
