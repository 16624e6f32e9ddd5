"""An episode that is saved with a request, and goes on from it at another worker."""

from dataclasses import replace

import numpy as np
import pytest

from protocol.messages import Begin, SavedTrajectory, Segment, Turn
from workers.agent.episode import EpisodeBudget, HostedEpisode
from workers.agent.policy import MAX_LOG_CHARS, AgentPolicy, Notes
from workers.agent.saved_state import pack, unpack
from workers.agent.transcript import Transcript

BEGIN = Begin(group=4, episode=2, trial=1, seed=9, attempt=6, episodes=4)
LIMITS = EpisodeBudget(turns=4, turn_tokens=3, tokens=40, tokens_limit="tokens", vocabulary=None, state_mb=1)


def take(played, ask, sampled):
    """The policy answers."""
    segments = (Segment(ask.attempt + 1, 0, len(sampled)),)
    turn = Turn(*played.key, ask.number, ask.member, ask.attempt + 1, "stop", segments)
    played.take(turn, np.asarray(sampled, "<i4").tobytes())


def test_what_was_said_is_cut_and_comes_back_with_a_state():
    policy = AgentPolicy(None, seed=0)
    for text in ("begun", 3, "x" * MAX_LOG_CHARS, "late"):
        policy.log(text)
    said = policy.notes.log
    assert said.startswith("begun\n3\nxxx")
    assert said.endswith("x... (more than an episode may say)")
    assert len(said) == MAX_LOG_CHARS
    policy.save(b"state")
    again = Notes()
    assert again.restore(policy.notes.take_state()) == b"state"
    assert again.log == said


def test_rewards_of_turns_come_back_with_a_state_of_an_older_worker_too():
    notes = Notes()
    for place in (1, 0):
        notes.count(place)
    notes.state = b"state"
    again, older = Notes(), Notes()
    again.restore(notes.take_state())
    assert again.answered == [1, 0]
    older.restore(pack({"rewards": [[0, 0.5]], "turns": 2}, b"state"))
    assert (older.answered, older.rewards) == ([0, 1], {0: 0.5})


def asked_twice(state=b"mine"):
    """An episode that has had a turn, and has saved its state with the request for the next one."""
    played = HostedEpisode(BEGIN, b"{}", limits=LIMITS, renderer=None)
    first, _ = played.ask(1, {"tokens": [1, 2], "state": b""})
    take(played, first, [5, 6])
    return played, *played.ask(2, {"tokens": [1, 2, 5, 6, 7], "state": state})


def test_it_asks_the_same_from_there_and_counts_on():
    _, ask, (given, packed) = asked_twice()
    assert ask.saved == len(packed)
    restored = (SavedTrajectory(1, 4, 8, True),)
    other = HostedEpisode(
        replace(BEGIN, known=2, restored=restored), b"{}", packed, limits=LIMITS, renderer=None
    )
    assert (other.state, other.turns) == (b"mine", 1)
    again, frames = other.ask(1, {"tokens": [1, 2, 5, 6, 7], "state": b"mine"})
    assert (again, frames) == (ask, (given, packed))
    take(other, again, [8])
    assert other.turn_at(1) == (2, 1)
    for number in (2, 3):
        more, _ = other.ask(number, {"tokens": [1, 2, 5, 6, 7, 8] + [9, 9] * (number - 1)})
        take(other, more, [9])
    with pytest.raises(Exception, match="has had its 4 turns"):
        other.ask(9, {"tokens": [1, 2, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9]})


def test_it_has_said_as_much_there_as_before():
    limits = replace(LIMITS, sampled=4)
    _, _, (_, packed) = asked_twice()  # two tokens were said
    begin = replace(BEGIN, known=2, restored=(SavedTrajectory(1, 4, 8, True),))
    other = HostedEpisode(begin, b"{}", packed, limits=limits, renderer=None)
    ask, _ = other.ask(1, {"tokens": [1, 2, 5, 6, 7], "state": b"mine"})
    assert ask.max_new_tokens == 2


def test_a_state_of_another_turn_is_refused():
    _, _, (_, packed) = asked_twice()
    begin = replace(BEGIN, known=3, restored=(SavedTrajectory(2, 6, 10, True),))
    with pytest.raises(ValueError, match=r"is of \[\(1, 4, 8, True\)\]; the controller expected \[\(2, 6"):
        HostedEpisode(begin, b"{}", packed, limits=LIMITS, renderer=None)


@pytest.mark.parametrize(
    "fields", [{}, [], {"conversations": 3}, {"conversations": [], "asked": 1, "turns": 3}]
)
def test_a_state_that_cannot_be_read_is_refused_in_words(fields):
    begin = replace(BEGIN, known=2, restored=(SavedTrajectory(1, 4, 8, True),))
    with pytest.raises(ValueError, match=r"cannot be read: \w+Error: .* begins again from its start"):
        HostedEpisode(begin, b"{}", pack(fields, b"mine"), limits=LIMITS, renderer=None)


def test_a_state_that_is_too_large_with_its_conversations_is_refused_by_name():
    with pytest.raises(ValueError, match=r"agent\.max_state_mb allows 1 MB"):
        asked_twice(bytes((1 << 20) - 10))


def test_nothing_is_saved_while_another_conversation_is_open():
    played = HostedEpisode(BEGIN, b"{}", limits=LIMITS, renderer=None)
    played.ask(1, {"tokens": [1, 2]})
    ask, frames = played.ask(2, {"tokens": [3], "state": b"mine"})
    assert (ask.saved, len(frames)) == (0, 1)


def test_tool_calls_compare_as_before_whatever_number_a_policy_has_written():
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "add", "arguments": '{"x": ' + "9" * 40 + "}"},
    }
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    one = Transcript(0, 1)
    one.open([1])
    one.answered([2])
    one.held(talk[:1], talk[1], None)
    fields, state = unpack(pack({"one": one.fields}, b"rest"))
    other = Transcript.restored(fields["one"])
    assert (other, state) == (one, b"rest")
