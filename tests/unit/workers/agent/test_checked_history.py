"""Histories that are checked once, and what is new in them each time."""

import random

import pytest

from workers.agent import messages as module
from workers.agent.messages import CheckedHistory, check_messages

USER = {"role": "user", "content": "?"}
ANSWER = {"role": "assistant", "content": "!", "refusal": None}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "3"}]}


@pytest.fixture
def checked(monkeypatch):
    """Places of messages, as they are checked one by one."""
    places, check = [], module._check_message

    def counted(message, place):
        places.append(place)
        return check(message, place)

    monkeypatch.setattr(module, "_check_message", counted)
    return places


def test_only_what_is_new_behind_a_request_that_was_taken_is_checked(checked):
    history = CheckedHistory()
    talk = [USER]
    for _ in range(3):
        assert history.check(talk) == check_messages(talk)
        talk = [*talk, CALLING, TOLD]
    assert checked == [0, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_conversations_that_grow_side_by_side_are_told_apart(checked):
    history = CheckedHistory()
    for name in "ab":
        history.check([{"role": "system", "content": name}, USER])
    del checked[:]
    for name in "ab":
        history.check([{"role": "system", "content": name}, USER, ANSWER, USER])
    assert checked == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        ([USER, CALLING, TOLD, ANSWER], "the assistant's own"),
        ([USER, CALLING, TOLD, {**TOLD, "tool_call_id": "b"}], "Message 3 answers the tool call 'b'"),
        ([USER, CALLING, TOLD, {"role": "root"}], "Message 3 has the role 'root'"),
        ([USER, CALLING, {**TOLD, "role": "root"}], "Message 2 has the role 'root'"),
    ],
)
def test_what_is_wrong_behind_a_known_history_is_told_as_ever(talk, words):
    history = CheckedHistory()
    history.check([USER, CALLING, TOLD])
    with pytest.raises(ValueError, match=words):
        history.check(talk)
    assert history.check([USER, CALLING, TOLD, USER]) == check_messages([USER, CALLING, TOLD, USER])


def test_all_characters_of_a_history_count(monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARS", 30)
    history = CheckedHistory()
    history.check([USER])
    with pytest.raises(ValueError, match="at most 30"):
        history.check([USER, ANSWER, USER, {"role": "user", "content": "x" * 20}])


def test_a_history_of_random_edits_is_read_as_without_what_was_before():
    source, history = random.Random(0), CheckedHistory()
    talk = [USER]
    for _ in range(300):
        talk = [*talk[: source.randrange(1, len(talk) + 1)], source.choice([USER, CALLING, TOLD, ANSWER])]
        outcomes = []
        for check in (history.check, check_messages):
            try:
                outcomes.append(check(talk))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
