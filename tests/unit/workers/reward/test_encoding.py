"""Rows to tokens: what supervised training takes as the response."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workers.reward.worker import encode_prompt, encode_response

ALPHABET = "abcABC |\n"
EOS = len(ALPHABET)
TEMPLATE = (
    "{% for m in messages %}{{ 'A' if m.role == 'assistant' else 'B' }}{{ m.content }}<eos>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}A{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {character: index for index, character in enumerate(ALPHABET)} | {"<eos>": EOS}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", chat_template=TEMPLATE)


def encoded(tokenizer, prompt, response, *, limit=20):
    row = json.dumps({"prompt": prompt, "response": response}).encode()
    ids = encode_prompt(tokenizer, row, limit=20)
    return tokenizer.decode(ids), tokenizer.decode(encode_response(tokenizer, row, ids, limit=limit))


def test_text_is_ended_once(tokenizer):
    assert encoded(tokenizer, "ab", "ca") == ("ab", "ca<eos>")
    assert encoded(tokenizer, "ab", "ca<eos>") == ("ab", "ca<eos>")


def test_an_answer_in_a_chat_ends_with_its_turn(tokenizer):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert encoded(tokenizer, [*talk, talk[0]], "c") == ("Ba<eos>\nAb<eos>\nBa<eos>\nA", "c<eos>")


def test_a_template_that_renders_the_prompt_otherwise_before_an_answer_is_refused(tokenizer):
    other = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        eos_token="<eos>",
        chat_template="{{ 'a' if messages|length == 1 else 'b' }}" + TEMPLATE,
    )
    with pytest.raises(ValueError, match="renders the prompt otherwise"):
        encoded(other, [{"role": "user", "content": "a"}], "c")


def test_a_response_beyond_the_limit_is_refused_with_its_length(tokenizer):
    with pytest.raises(ValueError, match=r"The response has 4 tokens; expected 1 to .*, 3"):
        encoded(tokenizer, "a", "bca", limit=3)
