"""Texts that take long to encode: an event loop leaves them to a thread.

Invariants: the thread gives the same tokens as the loop would; each has a renderer of its own, since no
tokenizer can be asked by two threads at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from workers.agent.messages import texts_of
from workers.agent.rendering.renderer import Past, Renderer
from workers.agent.rendering.spelling import Messages, Tools

MAX_QUICK_CHARS = 1 << 15
"""Of a text that an event loop encodes itself, which takes it some hundredths of a second."""

Result = TypeVar("Result")


class LongText(Exception):
    """What is to be encoded has more than MAX_QUICK_CHARS characters."""


class QuickRenderer:
    """A renderer as an event loop uses it: it encodes no text that is long."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.text, self.parse = renderer.text, renderer.parse  # of what an engine has sampled

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        """As every renderer does. Raises: LongText."""
        _check_length(messages, tools)
        return self._renderer.render(messages, tools)

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        """As every renderer does; the past is not encoded again. Raises: LongText."""
        _check_length(messages)
        return self._renderer.extend(last, messages, tools, past=past)

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """As every renderer does."""
        return type(self)(self._renderer.with_template_kwargs(kwargs))


class LongTexts:
    """A thread that encodes long texts, one after the other."""

    def __init__(self, make: Callable[[], Renderer | None]) -> None:
        """`make`: makes the renderer of the thread, in it, when the first long text comes."""
        self._make = make
        self._renderer: Renderer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long texts")

    async def run(self, work: Callable[[Renderer | None], Result]) -> Result:
        """What this work gives that needs a renderer. Raises: whatever it, or making the renderer, raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def close(self) -> None:
        """Begin nothing any more; not here, but at the end of the process the text in hand is waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[Renderer | None], Result]) -> Result:
        if self._renderer is None:
            self._renderer = self._make()
        return work(self._renderer)


def _check_length(*parts: Any) -> None:
    """Raises: LongText."""
    if sum(len(text) for part in parts for text in texts_of(part or ())) > MAX_QUICK_CHARS:
        raise LongText
