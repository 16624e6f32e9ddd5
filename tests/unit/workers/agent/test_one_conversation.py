"""Episodes that may have one conversation, and ask for something that is not trained."""

import pytest

from protocol.messages import Begin, Segment, Turn
from tests.unit.workers.agent.test_conversations import (
    ANSWER,
    MORE,
    USER,
    held,
    opened,
    place,
    talks,
    tokenizer,
)
from workers.agent.conversations import TooManyConversations
from workers.agent.episode import EpisodeBudget, HostedEpisode
from workers.agent.rendering.renderer import PlainRenderer

__all__ = ["tokenizer"]
ONE = EpisodeBudget(turns=9, turn_tokens=9, tokens=90, tokens_limit="tokens", vocabulary=None, trajectories=1)


@pytest.mark.parametrize(
    ("is_trained", "words"),
    [
        (True, "a conversation that is trained, and this request is of one that is not"),
        (False, "one that is not .*, and this request is of a conversation that is trained"),
    ],
)
def test_what_is_not_trained_goes_on_from_nothing_that_is_and_is_told_so(tokenizer, is_trained, words):
    found = talks(tokenizer, most=1)
    first = held(found, tokenizer, is_trained=is_trained)
    with pytest.raises(TooManyConversations, match=words):
        place(found, [USER, ANSWER, MORE], is_trained=not is_trained)
    with pytest.raises(TooManyConversations, match=words):
        found.place_tokens([*first.tokens, 5], is_trained=not is_trained)


def test_a_request_is_never_more_than_a_refusal(tokenizer):
    """Whatever its process says, the worker that asks for it lives."""
    episode = HostedEpisode(Begin(0, 0, 1, 7, 0, 1), b"{}", limits=ONE, renderer=PlainRenderer(tokenizer))
    for asked in ({}, {"chat": None}, {"tokens": None}, {"chat": [{"role": 1}]}, {"chat": {"a": 1}}):
        with pytest.raises(ValueError, match=r"\w"):
            episode.ask(1, asked)


def test_of_conversations_that_all_go_on_the_longest_does(tokenizer):
    found = talks(tokenizer)
    twins = [opened(found, [USER]) for _ in range(2)]
    for twin in twins:
        twin.answered([tokenizer.eos_token_id])
        twin.held([USER], ANSWER, None)
    longest = held(found, tokenizer, [USER, ANSWER, MORE])
    assert place(found, [USER, ANSWER, MORE, ANSWER, MORE]).transcript is longest


def test_a_turn_of_another_ask_answers_nothing(tokenizer):
    episode = HostedEpisode(Begin(0, 0, 1, 7, 0, 1), b"{}", limits=ONE, renderer=PlainRenderer(tokenizer))
    asked, _ = episode.ask("mine", {"tokens": [5]})
    turns = [Turn(0, 0, 1, number, asked.member, 2, "stop", (Segment(2, 0, 1),)) for number in (1, 0)]
    late, mine = (episode.take(turn, (6).to_bytes(4, "little")) for turn in turns)
    assert late is None
    assert mine == ("mine", {"sampled": [6], "ending": "stop", "place": 0})
