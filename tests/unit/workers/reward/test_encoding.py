"""Rows to tokens: what supervised training takes as the response."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workers.reward.worker import encode_prompt, encode_response, why_endless

ALPHABET = "abcABC |\n"
EOS = len(ALPHABET)
TEMPLATE = (
    "{% for m in messages %}{{ 'A' if m.role == 'assistant' else 'B' }}"
    "{% if m.reasoning_content %}|{{ m.reasoning_content }}|{% endif %}{{ m.content }}<eos>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}A{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {character: index for index, character in enumerate(ALPHABET)} | {"<eos>": EOS}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", chat_template=TEMPLATE)


def encoded(tokenizer, prompt, response, *, limit=20, stops=()):
    row = json.dumps({"prompt": prompt, "response": response}).encode()
    ids = encode_prompt(tokenizer, row, limit=20)
    response = encode_response(tokenizer, row, ids, limit=limit, stops=stops)
    return tokenizer.decode(ids), tokenizer.decode(response)


def test_text_is_ended_once(tokenizer):
    assert encoded(tokenizer, "ab", "ca") == ("ab", "ca<eos>")
    assert encoded(tokenizer, "ab", "ca<eos>") == ("ab", "ca<eos>")


def test_an_answer_in_a_chat_ends_with_its_turn(tokenizer):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert encoded(tokenizer, [*talk, talk[0]], "c") == ("Ba<eos>\nAb<eos>\nBa<eos>\nA", "c<eos>")


def test_what_stands_behind_the_end_token_is_not_trained_though_engines_stop_at_it_too(tokenizer):
    stops = {EOS, ALPHABET.index("\n")}
    assert encoded(tokenizer, [{"role": "user", "content": "a"}], "c", stops=stops)[1] == "c<eos>"


FEW_ROLES = "{% for m in messages %}{% if m.role in roles %}{{ m.content }}|{% endif %}{% endfor %}"
"""As that of Qwen, which drops what a developer says."""


def test_no_message_of_a_prompt_is_left_out_unsaid(tokenizer):
    def written(talk, *roles):
        made = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<eos>")
        made.chat_template = FEW_ROLES.replace("roles", repr(("user", *roles)))
        return made.decode(encode_prompt(made, json.dumps({"prompt": talk}).encode(), limit=20))

    talk = [{"role": "developer", "content": "ab"}, {"role": "user", "content": "c"}]
    assert written(talk, "developer") == written(talk, "system") == "ab|c|"
    with pytest.raises(ValueError, match=r"leaves out what messages of the role developer say.*another role"):
        written(talk)
    assert written([talk[0] | {"content": ""}, talk[1]]) == "c|"


def test_a_template_that_renders_the_prompt_otherwise_before_an_answer_is_refused(tokenizer):
    other = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        eos_token="<eos>",
        chat_template="{{ 'a' if messages|length == 1 else 'b' }}" + TEMPLATE,
    )
    with pytest.raises(ValueError, match="renders the prompt otherwise"):
        encoded(other, [{"role": "user", "content": "a"}], "c")


def test_parts_of_text_are_text(tokenizer):
    """Many chat templates would print the list as Python writes it."""
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    row = json.dumps({"prompt": [{"role": "user", "content": parts}]}).encode()
    assert tokenizer.decode(encode_prompt(tokenizer, row, limit=20)) == "Babc<eos>\nA"
    row = json.dumps({"prompt": [{"role": "user", "content": [{"type": "image", "url": "a"}]}]}).encode()
    with pytest.raises(ValueError, match=r"Message 0 of the prompt has .*'image'.* are not supported"):
        encode_prompt(tokenizer, row, limit=20)


BEGUN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]


def prompted(tokenizer, prompt, **row):
    return tokenizer.decode(
        encode_prompt(tokenizer, json.dumps({"prompt": prompt, **row}).encode(), limit=20)
    )


def test_a_prompt_that_ends_with_the_assistant_is_one_to_go_on_with(tokenizer):
    """As in TRL: the answer has begun, and no further turn is opened."""
    assert prompted(tokenizer, BEGUN) == "Ba<eos>\nAbc"
    assert prompted(tokenizer, BEGUN[:1]) == "Ba<eos>\nA"
    another = {"continue_final_message": False}
    assert prompted(tokenizer, BEGUN, chat_template_kwargs=another) == "Ba<eos>\nAbc<eos>\nA"
    of_the_user = [{"role": "user", "content": "ab"}]
    assert prompted(tokenizer, of_the_user, chat_template_kwargs={"continue_final_message": True}) == "Bab"


def test_a_response_after_the_assistant_is_a_turn_of_its_own(tokenizer):
    row = json.dumps({"prompt": BEGUN, "response": "c"}).encode()
    ids = encode_prompt(tokenizer, row, limit=20, is_supervised=True)
    assert tokenizer.decode(ids) == "Ba<eos>\nAbc<eos>\nA"
    assert tokenizer.decode(encode_response(tokenizer, row, ids, limit=20)) == "c<eos>"


def test_a_column_of_the_user_named_prompt_ids_is_told_how_to_be_renamed(tokenizer):
    with pytest.raises(ValueError, match=r"`prompt_ids` is 'p-17'; expected .*data.columns: \{prompt_name"):
        prompted(tokenizer, "a", prompt_ids="p-17")


def test_a_response_beyond_the_limit_is_refused_with_its_length(tokenizer):
    with pytest.raises(ValueError, match=r"The response has 4 tokens; expected 1 to .*, 3"):
        encoded(tokenizer, "a", "bca", limit=3)


def test_an_answer_is_rendered_with_all_that_its_message_has(tokenizer):
    answer = {"role": "assistant", "content": "c", "reasoning_content": "ab"}
    assert encoded(tokenizer, [{"role": "user", "content": "a"}], answer) == ("Ba<eos>\nA", "|ab|c<eos>")


def test_an_answer_ends_where_engines_stop_too(tokenizer):
    """As of base models whose template ends a turn otherwise than a document."""
    base = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        eos_token="<eos>",
        chat_template=TEMPLATE.replace("<eos>", " "),
    )
    talk, turn_end = [{"role": "user", "content": "a"}], ALPHABET.index(" ")
    assert encoded(base, talk, "c") == ("Ba \nA", "c \n")
    assert encoded(base, talk, "c", stops={turn_end, EOS}) == ("Ba \nA", "c ")


def test_where_no_response_has_an_end_it_is_said_what_it_ends_in(tokenizer):
    newline = ALPHABET.index("\n")
    problem = why_endless(tokenizer, [[0, newline], [1]], {EOS})
    assert problem is not None
    assert "no response ends in a token that engines stop at ('<eos>')" in problem
    assert "the first ends in '\\n'" in problem
    assert "`eos_token_id`" in problem
    assert "(none is named)" in (why_endless(tokenizer, [[0]], ()) or "")
    assert why_endless(tokenizer, [[0, newline], [1, EOS]], {EOS}) is None
    assert why_endless(tokenizer, [], {EOS}) is None
    assert "each goes on to rollout.max_response_tokens" in (why_endless(tokenizer, [], ()) or "")


def test_text_far_beyond_the_limit_is_refused_before_a_tokenizer_works_at_it(tokenizer):
    def working(*_, **__):
        raise AssertionError("the tokenizer was begun")

    working.eos_token_id, working.apply_chat_template = EOS, working
    text, fitting = "a" * (1 << 19), "a" * (1 << 13)
    for prompt in (text, [{"role": "user", "content": text}]):
        row = json.dumps({"prompt": prompt, "response": "b"}).encode()
        with pytest.raises(
            ValueError, match=r"The prompt has 524,\d+ characters.*rollout\.max_prompt_tokens"
        ):
            encode_prompt(working, row, limit=20)
    row = json.dumps({"prompt": "b", "response": text}).encode()
    assert encode_prompt(tokenizer, row, limit=20) == [ALPHABET.index("b")]
    with pytest.raises(ValueError, match=r"The response has 524,288 characters.*max_response_tokens"):
        encode_response(working, row, [1], limit=20)
    row = json.dumps({"prompt": fitting, "other": text}).encode()
    assert len(encode_prompt(tokenizer, row, limit=1 << 13)) == 1 << 13
