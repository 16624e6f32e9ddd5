"""Texts that an event loop encodes itself, and those that it leaves to a thread."""

import asyncio
import threading

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.rendering.long_texts import MAX_QUICK_CHARS, LongText, LongTexts, QuickRenderer
from workers.agent.rendering.probes import TOOLS
from workers.agent.rendering.renderer import Past, TemplateRenderer

USER, LONG = ({"role": "user", "content": text} for text in ("ab", "x" * (MAX_QUICK_CHARS + 1)))
ANSWER = {"role": "assistant", "content": "yes"}


@pytest.fixture(scope="module")
def renderer():
    return TemplateRenderer(make_tokenizer())


def test_a_short_text_is_rendered_as_ever(renderer):
    quick = QuickRenderer(renderer)
    prompt = quick.render([USER], TOOLS)
    assert prompt == renderer.render([USER], TOOLS)
    assert quick.extend(3, [USER], None) == renderer.extend(3, [USER], None)
    assert quick.text(prompt) == renderer.text(prompt)
    assert quick.parse(prompt) == renderer.parse(prompt)


@pytest.mark.parametrize(
    "ask",
    [
        lambda quick: quick.render([USER, LONG], None),
        lambda quick: quick.render([{"role": "user", "content": "x" * MAX_QUICK_CHARS}], TOOLS),
        lambda quick: quick.render([USER], [{**TOOLS[0], "more": {"deep": [LONG["content"]]}}]),
        lambda quick: quick.extend(3, [LONG], None),
    ],
)
def test_a_long_text_is_not_begun(renderer, ask):
    with pytest.raises(LongText):
        ask(QuickRenderer(renderer))


def test_what_goes_on_from_a_long_past_is_short(renderer):
    past = Past(renderer.render([LONG], None), renderer.render([ANSWER], None), [LONG, ANSWER])
    given = QuickRenderer(renderer).extend(3, [USER], None, past=past)
    assert given == renderer.extend(3, [USER], None)


def test_the_thread_has_one_renderer_of_its_own_and_gives_the_same(renderer):
    made = []

    def make():
        made.append((threading.current_thread(), TemplateRenderer(make_tokenizer())))
        return made[-1][1]

    def work(its):
        return its, threading.current_thread(), its.render([LONG], None)

    async def test():
        texts = LongTexts(make)
        found = await asyncio.gather(texts.run(work), texts.run(work))
        with pytest.raises(ZeroDivisionError):
            await texts.run(lambda its: 1 // 0)
        texts.close()
        return found

    whole = renderer.render([LONG], None)
    for its, thread, given in asyncio.run(test()):
        assert [(thread, its)] == made
        assert thread is not threading.current_thread()
        assert given == whole
