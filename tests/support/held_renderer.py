"""A renderer that takes as long over a long text as a test wants."""

import threading

from workers.agent.rendering.long_texts import MAX_QUICK_CHARS
from workers.agent.rendering.renderer import TemplateRenderer

LIMIT_S = 60
LONG = "long " * MAX_QUICK_CHARS


class HeldRenderer(TemplateRenderer):
    """The template of a tokenizer, which waits before it renders a long text."""

    released = threading.Event()
    begun = threading.Event()
    gave_up = False

    def render(self, messages, tools):
        if any(message["content"] == LONG for message in messages):
            self.begun.set()
            if not self.released.wait(LIMIT_S):
                HeldRenderer.gave_up = True
                raise ValueError("Nobody came to release it: the event loop is held.")
        return super().render(messages, tools)
