"""Conversations under `agent.history: template`: what the template writes otherwise begins a trajectory."""

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.conversations import Conversations
from workers.agent.rendering.renderer import TemplateRenderer

USER = {"role": "user", "content": "one"}
MORE = {"role": "user", "content": "and?"}
THOUGHT = {"role": "assistant", "content": "two", "reasoning_content": "hm"}
PLAIN = {"role": "assistant", "content": "two"}


def asked(found, messages):
    """The trajectory in which these messages are asked, and the tokens that it is given for them."""
    placed = found.place(messages, None, is_trained=True)
    transcript = placed.transcript or found.begin(is_trained=True)
    transcript.open(placed.given)
    return transcript, placed.given


def answered(found, tokenizer, transcript, messages, answer):
    """The turn is sampled, by the template's own words, as tokens that its text is not encoded to."""
    thought = f"<think>\n{answer['reasoning_content']}\n</think>\n\n" if "reasoning_content" in answer else ""
    tokens = tokenizer(thought + answer["content"], add_special_tokens=False)["input_ids"]
    transcript.answered([*tokens, tokenizer.eos_token_id])
    transcript.held(messages, answer, None)


def played(history, thinking, answer, turns=3):
    """The trajectory of each turn, and the text that it is given, of a conversation of so many turns."""
    tokenizer = make_tokenizer(thinking)
    found = Conversations(TemplateRenderer(tokenizer), first=0, step=1, attempt=0, most=64, history=history)
    messages, seen = [USER], []
    for _ in range(turns):
        transcript, given = asked(found, messages)
        seen.append((transcript.member, tokenizer.decode(given, skip_special_tokens=False)))
        answered(found, tokenizer, transcript, messages, answer)
        messages = [*messages, answer, MORE]
    return seen


def test_a_past_whose_thinking_is_stripped_begins_a_trajectory_of_its_own_with_every_turn():
    seen = played("template", "strips", THOUGHT)
    assert [member for member, _ in seen] == [0, 1, 2]
    assert seen[2][1] == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "<think>" not in seen[1][1] + seen[2][1]


def test_the_same_past_is_one_trajectory_where_it_is_kept():
    seen = played("keep", "strips", THOUGHT)
    assert [member for member, _ in seen] == [0, 0, 0]


def test_a_past_that_is_written_as_it_was_goes_on_from_its_own_tokens():
    for thinking, answer in (("keeps", THOUGHT), ("strips", PLAIN)):
        seen = played("template", thinking, answer)
        assert [member for member, _ in seen] == [0, 0, 0]
        assert seen[1][1] == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"


def test_tokens_stay_as_they_were_sampled_where_only_their_encoding_differs():
    tokenizer = make_tokenizer()
    found = Conversations(
        TemplateRenderer(tokenizer), first=0, step=1, attempt=0, most=64, history="template"
    )
    tokenizer.add_tokens(["wo"])  # the text of an answer is encoded with it from now on
    transcript, _ = asked(found, [USER])
    sampled = [tokenizer.convert_tokens_to_ids(letter) for letter in "two"] + [tokenizer.eos_token_id]
    assert tokenizer("two", add_special_tokens=False)["input_ids"] != sampled[:-1]
    transcript.answered(sampled)
    transcript.held([USER], PLAIN, None)
    again, _ = asked(found, [USER, PLAIN, MORE])
    assert again is transcript


def test_an_edited_past_is_rendered_whole():
    tokenizer = make_tokenizer("strips")
    found = Conversations(
        TemplateRenderer(tokenizer), first=0, step=1, attempt=0, most=64, history="template"
    )
    transcript, _ = asked(found, [USER])
    answered(found, tokenizer, transcript, [USER], THOUGHT)
    edited = [USER, {**THOUGHT, "content": "three"}, MORE]
    fork, given = asked(found, edited)
    assert fork.member == 1
    assert given == TemplateRenderer(tokenizer).render(edited, None)


def test_a_malformed_call_that_a_template_cannot_write_again_goes_on_from_its_own_tokens():
    tokenizer = make_tokenizer()
    written, iterated = "{{ call.function.arguments | tojson }}", "call.function.arguments|items"
    assert written in tokenizer.chat_template
    each = "{% for k, v in " + iterated + " %}{{ k }}={{ v }};{% endfor %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(written, each)
    found = Conversations(
        TemplateRenderer(tokenizer), first=0, step=1, attempt=0, most=64, history="template"
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    transcript, _ = asked(found, [USER])
    answered(found, tokenizer, transcript, [USER], answer)
    result = {"role": "tool", "tool_call_id": "a", "content": "Error: the arguments are no JSON"}
    again, given = asked(found, [USER, answer, result])
    assert again is transcript
    assert "no JSON" in tokenizer.decode(given)
