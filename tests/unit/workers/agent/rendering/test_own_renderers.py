"""Renderers and readers of tool calls by import path: what they may do, and what is said of what they do."""

import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.probes import probe
from workers.agent.rendering.renderer import Past, TemplateRenderer

USER = {"role": "user", "content": "hi"}
CALLING = {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}  # fmt: skip
SOUND = """
class Mine:
    def __init__(self, tokenizer): self.tokenizer = tokenizer
    def render(self, messages, tools): return [1, 2, len(messages)]
    def extend(self, last, messages, tools): return None if last in (9, None) else [last, 3]
    def parse(self, tokens): return {"content": "c", "tool_calls": [("add", {"a": 1})]}
"""
CALLS = """
def read(text):
    name, _, rest = text.partition("!")
    return rest, [(name, "{}")]
"""


@pytest.fixture
def made(tmp_path):
    """What `make_renderer` makes of code, named by the key."""
    make_tokenizer().save_pretrained(tmp_path)

    def make(code, name, key="renderer"):
        file = tmp_path / f"own_{len(list(tmp_path.glob('own_*')))}.py"
        file.write_text(code)
        settings = AgentSettings.model_validate({"function": "a.py:f", key: f"{file}:{name}"})
        return make_renderer(str(tmp_path), settings)

    return make


def test_a_renderer_of_ones_own_makes_tokens_and_reads_them(made):
    renderer = made(SOUND, "Mine")
    assert renderer.render([USER], None) == [1, 2, 1]
    assert renderer.extend(5, [USER], None) == [5, 3]
    assert renderer.extend(9, [USER], None) is None
    parsed = renderer.parse([1, 2])
    assert (parsed.content, parsed.calls) == ("c", (("add", '{"a": 1}'),))


def test_a_renderer_that_never_only_appends_is_a_verdict_of_the_probes(made):
    renderer = made(SOUND, "Mine")
    assert {*probe(renderer).values()} == {"the renderer does not only append"}


def test_calls_stay_text_where_none_are_wanted(made):
    renderer = made(SOUND, "Mine")
    tokens = make_tokenizer()("abc", add_special_tokens=False)["input_ids"]
    assert (renderer.parse(tokens, reads_calls=False).content, renderer.text(tokens)) == ("abc", "abc")
    assert not renderer.parse(tokens, reads_calls=False).calls


def test_ours_may_be_inherited_from(made):
    code = "from workers.agent.rendering.renderer import TemplateRenderer as T\nclass Mine(T): pass\n"
    tokenizer = make_tokenizer()
    assert made(code, "Mine").render([USER], None) == TemplateRenderer(tokenizer).render([USER], None)


def test_what_inherits_from_ours_knows_the_names_of_calls_too(made):
    code = "from workers.agent.rendering.renderer import TemplateRenderer as T\nclass Mine(T): pass\n"
    past, new = Past((), (), [USER, CALLING]), [{"role": "tool", "tool_call_id": "a", "content": "2"}]
    renderer = made(code, "Mine")
    renderer._own._tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}"
        "{{ messages[1].tool_calls[0].function.name if m.role == 'tool' }}{% endfor %}"
    )
    assert renderer.text(renderer.extend(None, new, None, past=past)) == "2add"


def use(renderer):
    renderer.render([USER], None)
    renderer.extend(1, [USER], None)
    renderer.parse([1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[1, 2, len(messages)]", "[1.5]"), r"`render` gave \[1.5\]; expected a list of token ids"),
        (("[1, 2, len(messages)]", "[1, True]"), r"`render` gave \[1, True\]; expected a list of token ids"),
        (
            ("[1, 2, len(messages)]", "[1 << 31]"),
            r"`render` gave \[2147483648\]; expected a list",
        ),
        (("[1, 2, len(messages)]", "[]"), "`render` gave no tokens"),
        (("[1, 2, len(messages)]", "1 / 0"), r"render \(.*own_0.py, line 4\) raised ZeroDivisionError"),
        (("[1, 2, len(messages)]", "exit(3)"), "raised SystemExit: 3"),
        (("[last, 3]", "[-1]"), "`extend` gave .* or None where it does not only append"),
        (('{"content": "c", "tool_calls": [("add", {"a": 1})]}', "7"), "`parse` gave 7; expected a mapping"),
        (('("add", {"a": 1})', "3"), r"a tool call is 3; expected \(name, arguments\)"),
        (('{"a": 1}', "{1}"), "the arguments of 'add' are no JSON"),
    ],
)
def test_what_no_engine_could_take_is_said_with_its_key(made, change, words):
    renderer = made(SOUND.replace(*change), "Mine")
    with pytest.raises(ValueError, match=f"agent.renderer: .*{words}"):
        use(renderer)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "class Mine:\n    def __init__(self, tokenizer): raise KeyError('x')",
            "raised KeyError: 'x' when it",
        ),
        ("def Mine(tokenizer): return 3", "made 3, which has no render, extend, parse; expected"),
        ("import nothing_such", "Importing .* failed: "),
    ],
)
def test_what_is_no_renderer_ends_the_start_in_words(made, code, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        made(code, "Mine")


def test_a_reader_of_ones_own_tells_calls_from_text(made):
    renderer = made(CALLS, "read", "tool_calls")
    tokens = make_tokenizer()("add!so", add_special_tokens=False)["input_ids"]
    parsed = renderer.parse(tokens)
    assert (parsed.content, parsed.calls, parsed.unreadable) == ("so", (("add", "{}"),), 0)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def read(text): return text", r"answered 'hi'; expected \(the rest of the text"),
        ("def read(text): raise ValueError('no')", "raised ValueError: no"),
        ("def read(text): return text, [('f', 1, 2)]", r"a tool call is \('f', 1, 2\)"),
    ],
)
def test_a_reader_that_fails_is_named(made, code, words):
    renderer = made(code, "read", "tool_calls")
    with pytest.raises(ValueError, match=f"agent.tool_calls: .*{words}"):
        renderer.parse(make_tokenizer()("hi", add_special_tokens=False)["input_ids"])


def test_a_reader_that_is_no_function_ends_the_start(made):
    with pytest.raises(ConfigError, match=r"agent.tool_calls: .* is 3; expected a function"):
        made("read = 3", "read", "tool_calls")


def test_a_probe_whose_answer_cannot_be_read_says_so(made):
    code = "from workers.agent.rendering.renderer import TemplateRenderer\nclass Mine(TemplateRenderer):\n"
    renderer = made(code + "    def parse(self, tokens): raise KeyError(1)", "Mine")
    assert {"raised KeyError" in why for why in probe(renderer).values()} == {True}
