"""One conversation as tokens."""

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.renderer import PlainRenderer, TemplateRenderer
from workers.agent.transcript import OneConversation, Transcript

USER = {"role": "user", "content": "one"}
ANSWER = {"role": "assistant", "content": "two"}
MORE = {"role": "user", "content": "and?"}


@pytest.fixture
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def talk(tokenizer):
    return Transcript(TemplateRenderer(tokenizer))


def held(talk, tokenizer, messages=(USER,), answer=ANSWER, tools=None):
    """One turn, sampled as other tokens than the tokenizer would make of its text."""
    given = talk.place(list(messages), tools)
    talk.open(given)
    sampled = [*reversed(tokenizer("owt", add_special_tokens=False)["input_ids"]), tokenizer.eos_token_id]
    talk.answered(sampled)
    talk.held(list(messages), answer, tools)
    return given, sampled


def test_what_was_sampled_stays_and_only_what_is_new_is_given(talk, tokenizer):
    first, sampled = held(talk, tokenizer)
    assert talk.tokens == first + sampled
    second = talk.place([USER, ANSWER, MORE], None)
    text = tokenizer.decode(second, skip_special_tokens=False)
    assert text == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert talk.tokens == first + sampled  # asking changes nothing before it is opened


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "other"}, ANSWER, MORE], "Message 0 is not what it was"),
        ([USER, {**ANSWER, "content": "three"}, MORE], "Message 1 is not what it was"),
        ([USER], "Message 1 is not what it was.*nothing"),
        ([MORE], "Message 0 is not what it was"),
    ],
)
def test_history_that_was_edited_is_refused_and_changes_nothing(talk, tokenizer, messages, words):
    held(talk, tokenizer)
    before = list(talk.tokens)
    with pytest.raises(ValueError, match=words):
        talk.place(messages, None)
    assert talk.tokens == before
    assert talk.place([USER, ANSWER, MORE], None)


def test_other_tools_and_a_second_request_at_once_are_refused(talk, tokenizer):
    held(talk, tokenizer)
    with pytest.raises(ValueError, match="The tools are others"):
        talk.place([USER, ANSWER, MORE], [{"type": "function", "function": {"name": "f"}}])
    talk.open(talk.place([USER, ANSWER, MORE], None))
    with pytest.raises(ValueError, match="Two requests at once"):
        talk.place([USER, ANSWER, MORE], None)


def test_tokens_are_appended_to_and_nothing_else(talk):
    assert talk.place_tokens([1, 2]) == [1, 2]
    talk.open([1, 2])
    talk.answered([3])
    assert talk.place_tokens([1, 2, 3, 4]) == [4]
    with pytest.raises(ValueError, match="differs at token 1"):
        talk.place_tokens([1, 5, 3, 4])
    with pytest.raises(ValueError, match="differs at token 2"):
        talk.place_tokens([1, 2])
    with pytest.raises(ValueError, match="adds nothing"):
        talk.place_tokens([1, 2, 3])


def test_without_a_chat_template_there_is_no_chat(tokenizer):
    with pytest.raises(ValueError, match=r"no chat template.*agent.renderer: plain.*policy.generate"):
        Transcript(None).place([USER], None)
    assert Transcript(PlainRenderer(tokenizer)).place([USER], None)


def test_an_answer_may_come_back_without_its_reasoning_and_not_with_another(talk, tokenizer):
    thought = {**ANSWER, "reasoning_content": "one, one"}
    talk.open(talk.place([USER], None))
    talk.answered(tokenizer("two", add_special_tokens=False)["input_ids"])
    talk.held([USER], thought, None)
    assert talk.place([USER, ANSWER, MORE], None) == talk.place([USER, thought, MORE], None)
    with pytest.raises(OneConversation, match="Message 1 is not what it was"):
        talk.place([USER, {**thought, "reasoning_content": "other"}, MORE], None)
