"""One episode's limits, and the words that it sends."""

import hashlib

import numpy as np
import pytest

from protocol.agents.settings import AgentSettings
from protocol.messages import Begin, Segment, Turn
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.episode import EpisodeBudget, HostedEpisode
from workers.agent.policy import BudgetExceeded
from workers.agent.rendering.renderer import TemplateRenderer

BEGIN = Begin(group=4, episode=2, trial=1, seed=9, attempt=6, episodes=4)


def episode(vocabulary=100, renderer=None, **agent):
    settings = WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        trainer=TrainerSettings(),
        rollout=RolloutSettings(max_prompt_tokens=8, max_response_tokens=4),
        agent=AgentSettings(function="a.py:f", **agent),
    )  # fmt: skip
    return HostedEpisode(BEGIN, b"{}", limits=EpisodeBudget.of(settings, vocabulary), renderer=renderer)


def turn(ask, tokens, *, attempt=None, ending="stop"):
    attempt = ask.attempt + 1 if attempt is None else attempt
    segments = (Segment(attempt, 0, len(tokens)),)
    frame = np.asarray(tokens, dtype="<i4").tobytes()
    return Turn(4, 2, 1, ask.number, ask.member, attempt, ending, segments), frame


def test_asks_name_what_is_kept_and_given_and_their_digest():
    played = episode()
    ask, (frame,) = played.ask(11, {"tokens": [1, 2, 3]})
    assert (ask.group, ask.episode, ask.trial, ask.number, ask.member) == (4, 2, 1, 0, 2)
    assert (ask.attempt, ask.keep, ask.given, ask.max_new_tokens) == (7, 0, 3, 4)
    assert np.frombuffer(frame, "<i4").tolist() == [1, 2, 3]
    assert ask.digest == hashlib.blake2b(frame, digest_size=16).hexdigest()
    assert not played.turns
    assert played.take(*turn(ask, [5, 6], attempt=9)) == (
        11,
        {"sampled": [5, 6], "ending": "stop", "place": 0},
    )
    assert played.turns == 1
    ask, (frame,) = played.ask(12, {"tokens": [1, 2, 3, 5, 6, 7], "max_tokens": 2})
    assert (ask.number, ask.attempt, ask.keep, ask.given, ask.max_new_tokens) == (1, 10, 5, 1, 2)
    assert np.frombuffer(frame, "<i4").tolist() == [7]


def test_the_first_ask_of_a_further_conversation_says_why_there_is_one():
    played = episode(vocabulary=10**6, renderer=TemplateRenderer(make_tokenizer()), max_tokens=10**3)
    user, other = ({"role": "user", "content": text} for text in "ab")

    def asked(*messages, **more):
        ask, _ = played.ask(1, {"chat": [*messages], **more})
        _, told = played.take(*turn(ask, [5, 6]))
        return ask.cause, told["message"]

    cause, answer = asked(user)
    assert not cause
    assert not asked(user, answer, other)[0]
    assert asked(user, {**answer, "content": "x"}, other)[0] == "edited"
    assert asked(user, answer, user, is_untrained=True)[0] == "branched", "there is no such conversation"
    assert asked(other)[0] == "branched"
    played = episode()
    ask, _ = played.ask(1, {"tokens": [1, 2]})
    played.take(*turn(ask, [3]))
    assert played.ask(2, {"tokens": [1, 2, 4, 5]})[0].cause == "edited"


def test_a_turn_that_answers_nothing_changes_nothing():
    played = episode()
    ask, _ = played.ask(1, {"tokens": [1]})
    word, frame = turn(ask, [2])
    assert played.take(*turn(ask, [2]))
    assert played.take(word, frame) is None


def test_turns_are_placed_in_the_order_of_asking_whichever_is_answered_first():
    played = episode()
    first, beside, second = (played.ask(n, {"tokens": [n], "is_untrained": n == 2})[0] for n in (1, 2, 3))
    assert played.take(*turn(second, [7]))[1]["place"] == 1
    assert (played.turns, played.has_answered(0), played.has_answered(1)) == (1, False, True)
    assert played.turn_at(1) == (second.member, 0)
    assert played.take(*turn(beside, [7]))[1]["place"] == -1
    assert played.take(*turn(first, [7]))[1]["place"] == 0
    assert (played.turns, played.turn_at(0)) == (2, (first.member, 0))


def test_limits_are_told_before_a_token_is_sampled_beyond_them():
    played = episode(max_turns=2)
    tokens = [1]
    for _ in range(2):
        ask, _ = played.ask(1, {"tokens": tokens})
        played.take(*turn(ask, [2]))
        tokens = [*tokens, 2, 1]
    with pytest.raises(BudgetExceeded, match=r"2 turns .agent\.max_turns") as error:
        played.ask(1, {"tokens": tokens})
    assert error.value.limit == "turns"

    played = episode()
    ask, _ = played.ask(1, {"tokens": [1] * 10})
    assert ask.max_new_tokens == 2  # 12 in all
    played.take(*turn(ask, [2, 2], ending="length"))
    assert played.cut_by == "context"  # and not at agent.max_turn_tokens
    with pytest.raises(BudgetExceeded) as error:
        played.ask(1, {"tokens": [1] * 10 + [2, 2, 1]})
    assert error.value.limit == "context"
    with pytest.raises(BudgetExceeded) as error:
        episode(max_tokens=6).ask(1, {"tokens": [1] * 6})
    assert error.value.limit == "tokens"


def test_a_turn_cut_at_its_limit_is_known_as_such():
    played = episode(max_turn_tokens=3)
    ask, _ = played.ask(1, {"tokens": [1]})
    played.take(*turn(ask, [2, 2, 2], ending="length"))
    assert played.cut_by == "length"
    ask, _ = played.ask(1, {"tokens": [1, 2, 2, 2, 1], "max_tokens": 1})
    played.take(*turn(ask, [2], ending="length"))
    assert not played.cut_by  # the agent wanted no more


def test_what_the_policy_may_say_in_an_episode_is_shared_by_its_conversations():
    played = episode(max_sampled_tokens=9)
    first, _ = played.ask(1, {"tokens": [1]})
    second, _ = played.ask(2, {"tokens": [2], "is_untrained": True})
    third, _ = played.ask(3, {"tokens": [3]})
    assert [ask.max_new_tokens for ask in (first, second, third)] == [4, 4, 1]
    with pytest.raises(BudgetExceeded, match=r"said 0 tokens .* 3 open requests may have 9 more") as error:
        played.ask(4, {"tokens": [4]})
    assert error.value.limit == "tokens"
    played.take(*turn(second, [7]))  # said less than it might have
    fourth, _ = played.ask(4, {"tokens": [4]})
    assert fourth.max_new_tokens == 3
    played.take(*turn(first, [7] * 4, ending="length"))
    assert played.cut_by == "length", "at agent.max_turn_tokens"
    played.take(*turn(third, [7], ending="length"))
    assert played.cut_by == "tokens"
    played.take(*turn(fourth, [7] * 3, ending="length"))
    with pytest.raises(BudgetExceeded, match=r"said 9 tokens in this episode; it may say 9 \(agent\.max_sam"):
        played.ask(5, {"tokens": [1, 7, 7, 7, 7, 5]})


@pytest.mark.parametrize("token", [100, -1])
def test_tokens_outside_of_the_vocabulary_are_refused_here(token):
    with pytest.raises(ValueError, match=f"the token id {token}; the model has 100 tokens"):
        episode().ask(1, {"tokens": [token]})


def test_a_chat_is_answered_by_a_message_that_the_next_request_repeats():
    tokenizer = make_tokenizer()
    limits = EpisodeBudget(3, 100, 1000, "tokens", len(tokenizer))
    played = HostedEpisode(BEGIN, b"{}", limits=limits, renderer=TemplateRenderer(tokenizer))
    user = {"role": "user", "content": "hi"}
    ask, _ = played.ask(3, {"chat": [user], "tools": None})
    first = ask.given
    sampled = [*tokenizer("yes", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    question, answer = played.take(*turn(ask, sampled))
    assert (question, answer["message"]) == (3, {"role": "assistant", "content": "yes"})
    ask, (frame,) = played.ask(4, {"chat": [user, {**answer["message"], "refusal": None}, user]})
    assert ask.keep == first + len(sampled)
    given = np.frombuffer(frame, "<i4").tolist()
    assert tokenizer.decode(given, skip_special_tokens=False).startswith("\n<|im_start|>user\nhi<|im_end|>")


def test_messages_that_the_template_refuses_are_the_agents_fault():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    played = episode(vocabulary=len(tokenizer), renderer=TemplateRenderer(tokenizer))
    with pytest.raises(ValueError, match="The chat template refuses the messages: TemplateError: never"):
        played.ask(1, {"chat": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("{% for name, _ in tools[0].function.parameters.properties | dictsort %}{% endfor %}", "Attribute"),
        ("{{ 1 // (messages[0].content | length - 2) }}", "ZeroDivision"),
    ],
    ids=["filter", "arithmetic"],
)
def test_whatever_a_template_raises_at_messages_and_tools_is_the_agents_fault(written, error):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = written + tokenizer.chat_template
    played = episode(vocabulary=len(tokenizer), renderer=TemplateRenderer(tokenizer), max_tokens=4000)
    empty = {"type": "function", "function": {"name": "f", "parameters": {"properties": []}}}  # as PHP has it
    with pytest.raises(ValueError, match=f"The chat template refuses the messages: {error}Error"):
        played.ask(1, {"chat": [{"role": "user", "content": "hi"}], "tools": [empty]})
    full = {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}
    ask, _ = played.ask(1, {"chat": [{"role": "user", "content": "again"}], "tools": [full]})
    assert ask.number == 0
