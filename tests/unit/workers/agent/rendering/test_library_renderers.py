"""Renderers of the library `renderers`: held to what ours promise, family by family."""

import importlib.util
import sys
from dataclasses import dataclass

import pytest

from protocol.agents.renderers import LEFT_OUT, LIBRARY
from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.family_tokenizer import make_family_tokenizer
from tests.unit.workers.agent.test_episode import episode, turn
from workers.agent.conversations import Conversations
from workers.agent.rendering import library
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.library import LibraryRenderer
from workers.agent.rendering.probes import TALKS, TOOLS, check_probes, doubts, probe, why_useless
from workers.agent.rendering.renderer import Past, message_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("renderers") is None, reason="needs the extra renderers"
)
USER = {"role": "user", "content": "one and one"}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOLD = {"role": "tool", "tool_call_id": "a", "content": "2"}


@pytest.fixture(scope="module")
def renderers():
    """Of each name, one for a tokenizer of its family."""
    return {name: LibraryRenderer(name, make_family_tokenizer(name)) for name in LIBRARY}


@pytest.fixture
def qwen(renderers):
    return renderers["qwen3"]


def spelt(renderer, tokens):
    return renderer._tokenizer.decode(tokens, skip_special_tokens=False)


def ids(renderer, text):
    return renderer._tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_names_are_those_of_the_library():
    from renderers.base import RENDERER_REGISTRY, _populate_registry

    _populate_registry()
    assert {*LIBRARY} | {*LEFT_OUT} == {*RENDERER_REGISTRY, "auto", "custom"}


@pytest.mark.parametrize("name", LIBRARY)
def test_each_goes_on_from_its_own_tokens(renderers, name):
    renderer = renderers[name]
    assert why_useless(renderer) is None
    verdicts = probe(renderer)
    if name == "deepseek-v4":  # sorts the answers of tools by calls that it is not shown
        assert verdicts.pop("two tools at once") == "the renderer does not only append"
    for why in verdicts.values():
        # what is left are histories that it writes otherwise; Llama 3 refuses two calls at once
        assert why in ("", *OTHERWISE) or why.startswith("the template refuses it")
    last = min(renderer._stops)
    prompt = renderer.render([USER], None)
    thought = ids(renderer, "</think>two")  # out of its thoughts, where the prompt has opened them
    past = Past(prompt, [*thought, last], [USER, {"role": "assistant", "content": "two"}])
    given = renderer.extend(last, [{"role": "user", "content": "more"}], None, past=past)
    assert given is None or "more" in spelt(renderer, given)


OTHERWISE = (
    "the template writes the prompt otherwise once it is answered",
    "the template strips the thinking of earlier turns",
)


@pytest.mark.parametrize("role", ["user", "tool", "system"])
@pytest.mark.parametrize("name", LIBRARY)
def test_no_text_can_spell_a_token_that_tells_turns_apart(renderers, name, role):
    renderer = renderers[name]
    for token in renderer.structure:
        id = renderer._tokenizer.convert_tokens_to_ids(token)
        forged, honest = (_talk(role, text) for text in (f"ok{token} yes", "ok yes"))
        tokens = renderer.render(forged, None)
        assert tokens.count(id) == renderer.render(honest, None).count(id), token
        assert f"ok{token} yes" in spelt(renderer, tokens)
        if role != "system":
            given, plain = (renderer.extend(None, talk[-1:], None) for talk in (forged, honest))
            assert (given or []).count(id) == (plain or []).count(id), token
    assert {*renderer._stops} <= {
        renderer._tokenizer.convert_tokens_to_ids(text) for text in renderer.structure
    }


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("qwen3", "<|im_start|>"),
        ("llama-3", "<|start_header_id|>"),
        ("laguna-m.1", "<assistant>"),
        ("deepseek-v3", "<\uff5cUser\uff5c>"),
        ("glm-4.5", "<|observation|>"),
        ("gemma4", "<|tool_response>"),  # ends a turn, as its name does not say
    ],
)
def test_what_begins_a_turn_is_hidden_too_and_thoughts_are_not(renderers, name, token):
    assert token in renderers[name].structure
    assert not {"<think>", "</think>", "<tool_call>"} & {*renderers[name].structure}


def _talk(role, text):
    if role == "tool":
        return [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {**TOLD, "content": text}]
    return [{"role": "system", "content": text}, USER] if role == "system" else [{**USER, "content": text}]


def test_schemas_of_tools_cannot_forge_a_token_either(qwen):
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]
    end = qwen._tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert qwen.render([USER], tools).count(end) == qwen.render([USER], TOOLS).count(end)


def test_a_text_that_json_escapes_stays_what_it_spells():
    tokenizer = make_family_tokenizer("deepseek-v3")
    guard = library.GuardedTokenizer(tokenizer)
    token = "<\uff5cUser\uff5c>"
    guard.convert_tokens_to_ids(token)
    guard.stand_ins = {"\ue000": token, "\\ue000": "<\\uff5cUser\\uff5c>"}
    tokens = guard.encode("a\ue000b\\ue000c")
    assert tokenizer.convert_tokens_to_ids(token) not in tokens
    assert tokenizer.decode(tokens) == f"a{token}b<\\uff5cUser\\uff5c>c"


def test_calls_and_thoughts_are_read(qwen):
    turn = '<think>\none, one\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    said = qwen.parse(ids(qwen, turn + "<|im_end|>"), tools=TOOLS)
    assert (said.reasoning, said.content, said.calls) == ("one, one", "", (("add", '{"a": 1}'),))
    assert said.unreadable == 0
    plain = qwen.parse(ids(qwen, turn + "<|im_end|>"), reads_calls=False)
    assert (plain.content, plain.calls) == (turn, ())


def test_a_call_that_cannot_be_read_is_a_call_that_says_what_stands_there(qwen):
    said = qwen.parse(ids(qwen, "<tool_call>\nadd one\n</tool_call><|im_end|>"))
    ((name, arguments),) = said.calls
    assert (name, said.unreadable) == ("", 1)
    assert "add one" in arguments


def test_thoughts_that_the_prompt_has_opened_are_told_from_the_answer(renderers):
    renderer = renderers["qwen3.5"]
    prompt = renderer.render([USER], None)
    said = renderer.parse(ids(renderer, "one, one\n</think>\n\ntwo<|im_end|>"), prompt=prompt)
    assert (said.reasoning, said.content) == ("one, one", "two")


def test_ids_that_the_policy_writes_are_those_of_its_calls(renderers):
    renderer = renderers["kimi-k2"]
    call = "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    turn = f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|><|im_end|>"
    message = message_of(renderer.parse(ids(renderer, turn)), [1])
    assert [(one["id"], one["function"]["name"]) for one in message["tool_calls"]] == [
        ("functions.add:0", "add")
    ]
    twice = turn.replace(call, call + call)
    message = message_of(renderer.parse(ids(renderer, twice)), [1])
    first, second = (one["id"] for one in message["tool_calls"])
    assert first != second


def test_an_episode_goes_on_from_what_was_sampled_and_a_turn_that_was_cut_is_ended(qwen):
    talks = Conversations(qwen, first=0, step=1, attempt=0, most=8)
    messages = [USER]
    for said in ("<think>\n1\n</think>\n\ntwo<|im_end|>", "thr"):
        placed = talks.place(messages, None, is_trained=True)
        transcript = placed.transcript or talks.begin(is_trained=True)
        transcript.open(placed.given)
        transcript.answered(ids(qwen, said))
        answer = message_of(qwen.parse(ids(qwen, said)), transcript.tokens)
        transcript.held(messages, answer, None)
        messages = [*messages, answer, {"role": "user", "content": "more"}]
    placed = talks.place(messages, None, is_trained=True)
    assert placed.transcript is talks.find(0)
    assert (
        spelt(qwen, placed.given) == "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )
    assert spelt(qwen, talks.find(0).tokens) == (
        "<|im_start|>user\none and one<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n1\n</think>\n\ntwo<|im_end|>"
        "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\nthr"
    )


def test_the_tool_that_answers_is_named_after_its_call(renderers):
    """Gemma writes the name of the tool, which the new messages alone do not have."""
    renderer = renderers["gemma4"]
    talk = TALKS["a tool's turn"]
    assert probe(renderer)["a tool's turn"] == ""
    assert (
        "add" in spelt(renderer, renderer.render([*talk.before, talk.answer, *talk.new], None)).split("2")[0]
    )


@dataclass
class Bridged:
    token_ids: object


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (Bridged([1, 2, 3, 4]), [4]),
        (Bridged([1, 2, 3]), None),  # nothing to continue
        (Bridged([1, 9, 3, 4]), None),  # what was sampled is another
        (Bridged([1, 2]), None),
        (None, None),
    ],
)
def test_what_does_not_begin_with_all_that_was_sampled_is_not_gone_on_with(monkeypatch, qwen, answer, given):
    monkeypatch.setattr(qwen._theirs, "bridge_to_next_turn", lambda *_, **__: answer)
    assert qwen.extend(3, [USER], None, past=Past([1], [2, 3], [USER])) == given


@pytest.mark.parametrize(
    ("method", "answer", "ask", "words"),
    [
        ("render_ids", [-1], lambda one: one.render([USER], None), "`render_ids` gave .*a list of token ids"),
        ("render_ids", [], lambda one: one.render([USER], None), "gave no tokens"),
        ("bridge_to_next_turn", Bridged("x"), lambda one: one.extend(1, [USER], None), "gave 'x'"),
        ("parse_response", "x", lambda one: one.parse([1]), "`parse_response` gave 'x'"),
    ],
)
def test_an_answer_that_is_no_such_thing_is_told_with_the_key(monkeypatch, qwen, method, answer, ask, words):
    monkeypatch.setattr(qwen._theirs, method, lambda *_, **__: answer)
    with pytest.raises(ValueError, match=f"agent.renderer: .*{words}"):
        ask(qwen)


def test_what_the_library_raises_is_told_with_the_key(qwen):
    with pytest.raises(ValueError, match=r"agent.renderer: .*render_ids .* raised ValueError"):
        qwen.render([], None)


def test_a_tokenizer_of_another_family_is_named(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    settings = AgentSettings.model_validate({"function": "a.py:f", "renderer": "llama-3"})
    with pytest.raises(
        ConfigError, match=r"agent.renderer: the library's `llama-3` cannot be made .*begin_of_text"
    ):
        make_renderer(str(tmp_path), settings)


def test_a_library_that_is_not_there_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ConfigError, match=r"agent.renderer: `qwen3` .* pip install -e '\.\[renderers\]'"):
        LibraryRenderer("qwen3", make_tokenizer())


def test_histories_that_it_writes_otherwise_are_refused_where_that_is_asked_for(renderers):
    with pytest.raises(ConfigError, match="a thinking turn"):
        check_probes(renderers["qwen3"], "refuse")
    check_probes(renderers["prime-qwen3"], "refuse")


def test_what_it_writes_or_reads_otherwise_is_told(renderers):
    for name, told in (
        ("qwen3", []),
        ("kimi-k2", ["reads a tool's turn, two tool turns, two tools at once"]),
    ):
        tokenizer = renderers[name]._tokenizer
        tokenizer.chat_template = None
        assert [text.partition(" otherwise")[0] for text in doubts(renderers[name], tokenizer)] == told
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert doubts(renderers["kimi-k2"], tokenizer)[0].startswith("writes a user's turn, ")


def test_the_library_is_shown_the_request_and_the_turn_that_it_goes_on_from(monkeypatch, qwen):
    seen = []

    def bridge(prompt, sampled, new, tools):
        seen.append(("bridge", prompt, sampled, new, tools))
        return Bridged([*prompt, *sampled, 7])

    monkeypatch.setattr(qwen._theirs, "bridge_to_next_turn", bridge)
    parse = qwen._theirs.parse_response
    monkeypatch.setattr(
        qwen._theirs,
        "parse_response",
        lambda tokens, **more: seen.append(("parse", tokens, more)) or parse(tokens, **more),
    )
    played = episode(vocabulary=10**6, renderer=qwen, max_tokens=10**4)
    ask, _ = played.ask(1, {"chat": [USER], "tools": TOOLS})
    prompt, sampled = qwen.render([USER], TOOLS), ids(qwen, "two<|im_end|>")
    _, told = played.take(*turn(ask, sampled))
    assert seen.pop() == ("parse", sampled, {"tools": TOOLS, "prompt_ids": prompt})
    more = {"role": "user", "content": "more"}
    ask, _ = played.ask(2, {"chat": [USER, told["message"], more], "tools": TOOLS})
    assert (ask.keep, ask.given) == (len(prompt) + len(sampled), 1)
    played.take(*turn(ask, [5, 6]))
    seen.clear()
    played.ask(3, {"chat": [USER, told["message"], {**more, "content": "else"}], "tools": TOOLS})
    assert seen == [("bridge", prompt, sampled, [{**more, "content": "else"}], TOOLS)]
