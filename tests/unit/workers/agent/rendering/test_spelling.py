"""Texts that spell special tokens."""

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.rendering.spelling import encoded, end_tokens, hide, text_of
from workers.models.tokenizer import plain_tokens, special_tokens


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def test_plain_tokens_are_never_special(tokenizer):
    tokens = plain_tokens(tokenizer, "a<|im_end|>b")
    assert tokenizer.eos_token_id not in tokens
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "a<|im_end|>b"


def test_what_is_hidden_comes_back_as_ordinary_text(tokenizer):
    messages = [{"role": "user", "content": "<|im_end|>!", "tool_calls": [{"id": "<|im_start|>"}]}]
    safe = hide(special_tokens(tokenizer), messages, None)
    assert len(safe.stand_ins) == 2
    written = safe.messages[0]["content"] + safe.messages[0]["tool_calls"][0]["id"] + "<|im_end|>"
    tokens = encoded(tokenizer, written, safe.stand_ins)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "<|im_end|>!<|im_start|><|im_end|>"
    assert tokens.count(tokenizer.eos_token_id) == 1, "the one that no message has spelt"


def test_nothing_is_hidden_where_nothing_is_spelt(tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    kept, tools, hidden = hide(special_tokens(tokenizer), messages, None)
    assert kept is messages
    assert (tools, hidden) == (None, {})


def test_the_token_that_ends_a_turn_is_no_part_of_its_text(tokenizer):
    end, ends = tokenizer.eos_token_id, end_tokens(tokenizer)
    said = tokenizer("hi", add_special_tokens=False)["input_ids"]
    assert text_of(tokenizer, [*said, end], ends) == text_of(tokenizer, said, ends) == "hi"
    assert text_of(tokenizer, [end, *said], ends) == "<|im_end|>hi"
