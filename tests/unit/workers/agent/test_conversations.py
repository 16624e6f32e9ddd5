"""The conversations of an episode: what goes on, what forks, and what is refused where one is all."""

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.conversations import Conversations, TooManyConversations
from workers.agent.rendering.renderer import PlainRenderer, TemplateRenderer

USER = {"role": "user", "content": "one"}
ANSWER = {"role": "assistant", "content": "two"}
MORE = {"role": "user", "content": "and?"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def talks(tokenizer, most=64):
    return Conversations(TemplateRenderer(tokenizer), first=1, step=4, attempt=5, most=most)


def place(found, messages, tools=None, *, is_trained=True):
    return found.place(list(messages), tools, is_trained=is_trained)


def opened(found, messages, tools=None, *, is_trained=True):
    """The transcript in which these were asked."""
    placed = place(found, messages, tools, is_trained=is_trained)
    transcript = placed.transcript or found.begin(is_trained=is_trained)
    transcript.open(placed.given)
    return transcript


def held(found, tokenizer, messages=(USER,), answer=ANSWER, tools=None, *, is_trained=True):
    """One turn, sampled as other tokens than the tokenizer would make of its text."""
    transcript = opened(found, messages, tools, is_trained=is_trained)
    sampled = [*reversed(tokenizer("owt", add_special_tokens=False)["input_ids"]), tokenizer.eos_token_id]
    transcript.answered(sampled)
    transcript.held(list(messages), answer, tools)
    return transcript


def text(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False)


def test_what_was_sampled_stays_and_only_what_is_new_is_given(tokenizer):
    found = talks(tokenizer)
    first = held(found, tokenizer)
    before = list(first.tokens)
    placed = place(found, [USER, ANSWER, MORE])
    assert placed.transcript is first
    assert text(tokenizer, placed.given) == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert first.tokens == before  # asking changes nothing before it is opened


def test_an_edited_history_forks_behind_the_turns_that_it_shares(tokenizer):
    found = talks(tokenizer)
    first = held(found, tokenizer)
    shared = list(first.tokens)
    held(found, tokenizer, [USER, ANSWER, MORE])
    placed = place(found, [USER, ANSWER, USER])
    assert placed.transcript is None
    assert placed.given[: len(shared)] == shared, "what was sampled is not encoded again"
    assert text(tokenizer, placed.given[len(shared) :]).startswith("\n<|im_start|>user\none<|im_end|>")
    fork = opened(found, [USER, ANSWER, USER])
    assert (first.member, fork.member, fork.attempt) == (1, 5, 5)
    assert (found.find(5), found.find(9), found.find(4)) == (fork, None, None)


def test_a_history_that_shares_no_turn_is_rendered_whole(tokenizer):
    found = talks(tokenizer)
    held(found, tokenizer)
    whole = place(talks(tokenizer), [USER, {**ANSWER, "content": "three"}, MORE]).given
    placed = place(found, [USER, {**ANSWER, "content": "three"}, MORE])
    assert placed == (None, whole)
    assert place(found, [USER, ANSWER, MORE], TOOLS).transcript is None


def test_two_equal_requests_at_once_are_two_samples(tokenizer):
    found = talks(tokenizer)
    first = held(found, tokenizer)
    assert opened(found, [USER, ANSWER, MORE]) is first
    second = opened(found, [USER, ANSWER, MORE])
    assert second is not first
    assert second.tokens == first.tokens


def test_the_longest_of_those_that_a_request_repeats_goes_on(tokenizer):
    found = talks(tokenizer)
    first = held(found, tokenizer)
    second = held(found, tokenizer, [USER], {**ANSWER, "content": "three"})
    third = {**ANSWER, "content": "four"}
    assert held(found, tokenizer, [USER, ANSWER, MORE], third) is first
    assert place(found, [USER, ANSWER, MORE, third, USER]).transcript is first
    assert place(found, [USER, {**ANSWER, "content": "three"}, MORE]).transcript is second


def test_untrained_calls_have_conversations_of_their_own(tokenizer):
    found = talks(tokenizer)
    first = held(found, tokenizer)
    aside = held(found, tokenizer, [USER, ANSWER, MORE], is_trained=False)
    assert aside is not first
    assert aside.tokens[: len(first.tokens)] == first.tokens
    assert place(found, [USER, ANSWER, MORE]).transcript is first
    assert place(found, [USER, ANSWER, MORE, ANSWER, MORE], is_trained=False).transcript is aside


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "other"}, ANSWER, MORE], "Message 0 is not what it was"),
        ([USER, {**ANSWER, "content": "three"}, MORE], "Message 1 is not what it was"),
        ([USER], "Message 1 is not what it was.*nothing"),
        ([MORE], "Message 0 is not what it was"),
    ],
)
def test_where_one_is_all_edited_history_is_refused_and_changes_nothing(tokenizer, messages, words):
    found = talks(tokenizer, most=1)
    before = list(held(found, tokenizer).tokens)
    with pytest.raises(ValueError, match=words):
        place(found, messages)
    assert found.find(1).tokens == before
    assert place(found, [USER, ANSWER, MORE]).given


def test_where_one_is_all_other_tools_and_a_second_request_at_once_are_refused(tokenizer):
    found = talks(tokenizer, most=1)
    held(found, tokenizer)
    with pytest.raises(TooManyConversations, match="The tools are others"):
        place(found, [USER, ANSWER, MORE], TOOLS)
    opened(found, [USER, ANSWER, MORE])
    with pytest.raises(TooManyConversations, match="Two requests at once"):
        place(found, [USER, ANSWER, MORE])


def test_the_last_conversation_is_named_by_its_number(tokenizer):
    found = talks(tokenizer, most=2)
    held(found, tokenizer)
    held(found, tokenizer, [MORE])
    with pytest.raises(TooManyConversations, match=r"begins number 3; agent\.max_trajectories allows 2"):
        place(found, [{"role": "user", "content": "third"}])


def tokens_answered(found, whole, sampled):
    placed = found.place_tokens(whole, is_trained=True)
    transcript = placed.transcript or found.begin(is_trained=True)
    transcript.open(placed.given)
    transcript.answered(sampled)
    return placed


def test_tokens_go_on_or_begin_another(tokenizer):
    found = talks(tokenizer)
    assert tokens_answered(found, [1, 2], [3]) == (None, [1, 2])
    assert found.place_tokens([1, 2, 3, 4], is_trained=True) == (found.find(1), [4])
    assert found.place_tokens([1, 5, 3, 4], is_trained=True) == (None, [1, 5, 3, 4])
    with pytest.raises(ValueError, match="has no tokens"):
        found.place_tokens([], is_trained=True)


def test_where_one_is_all_tokens_are_appended_to_and_nothing_else(tokenizer):
    found = talks(tokenizer, most=1)
    tokens_answered(found, [1, 2], [3])
    assert found.place_tokens([1, 2, 3, 4], is_trained=True).given == [4]
    with pytest.raises(ValueError, match="differs at token 1"):
        found.place_tokens([1, 5, 3, 4], is_trained=True)
    with pytest.raises(ValueError, match="differs at token 2"):
        found.place_tokens([1, 2], is_trained=True)
    with pytest.raises(ValueError, match="adds nothing"):
        found.place_tokens([1, 2, 3], is_trained=True)


def test_without_a_chat_template_there_is_no_chat(tokenizer):
    with pytest.raises(ValueError, match=r"no chat template.*agent.renderer: plain.*policy.generate"):
        place(Conversations(None, first=0, step=1, attempt=0, most=1), [USER])
    plain = Conversations(PlainRenderer(tokenizer), first=0, step=1, attempt=0, most=1)
    assert place(plain, [USER]).given


def test_an_answer_may_come_back_without_its_reasoning_and_not_with_another(tokenizer):
    found = talks(tokenizer, most=1)
    thought = {**ANSWER, "reasoning_content": "one, one"}
    held(found, tokenizer, [USER], thought)
    assert place(found, [USER, ANSWER, MORE]) == place(found, [USER, thought, MORE])
    with pytest.raises(TooManyConversations, match="Message 1 is not what it was"):
        place(found, [USER, {**thought, "reasoning_content": "other"}, MORE])


def test_a_fork_behind_a_turn_that_was_cut_has_all_of_its_tokens(tokenizer):
    found = talks(tokenizer)
    first = opened(found, [USER])
    first.answered(tokenizer("two", add_special_tokens=False)["input_ids"])  # and no end of the turn
    first.held([USER], ANSWER, None)
    shared = list(first.tokens)
    opened(found, [USER, ANSWER, MORE])
    placed = place(found, [USER, ANSWER, USER])
    assert placed.given[: len(shared)] == shared
    assert text(tokenizer, placed.given[len(shared) :]).startswith("<|im_end|>\n<|im_start|>user\none")


def test_messages_go_on_from_no_tokens_that_only_generate_has_given(tokenizer):
    """They fork where they were told of last: the policy is asked in the context that they have."""
    found = talks(tokenizer)
    first = held(found, tokenizer)
    told = list(first.tokens)
    secret = tokenizer("SECRET", add_special_tokens=False)["input_ids"]
    placed = found.place_tokens([*told, *secret], is_trained=True)
    assert placed.transcript is first
    first.open(placed.given)
    first.answered(secret)
    placed = place(found, [USER, ANSWER, MORE])
    assert placed.transcript is None
    assert placed.given[: len(told)] == told
    assert "SECRET" not in text(tokenizer, placed.given)
    assert found.cause([USER, ANSWER, MORE], placed.given, None, is_trained=True) == "branched"


def test_where_one_is_all_tokens_that_only_generate_has_given_are_named(tokenizer):
    found = talks(tokenizer, most=1)
    first = held(found, tokenizer)
    first.open(found.place_tokens([*first.tokens, 5], is_trained=True).given)
    first.answered([6])
    with pytest.raises(TooManyConversations, match=r"tokens of policy\.generate that are in none of its"):
        place(found, [USER, ANSWER, MORE])
