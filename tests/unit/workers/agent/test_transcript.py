"""One conversation as tokens: what it shares with a request, and where its turns end."""

from workers.agent.transcript import Transcript, TurnEnd

USER = {"role": "user", "content": "one"}
ANSWER = {"role": "assistant", "content": "two"}
MORE = {"role": "user", "content": "and?"}
LAST = {"role": "assistant", "content": "three"}


def two_turns() -> Transcript:
    found = Transcript(member=0, attempt=0)
    for given, sampled, talk, answer in (
        ([1, 2], [3], [USER], ANSWER), ([4], [5, 6], [USER, ANSWER, MORE], LAST)
    ):  # fmt: skip
        found.open(given)
        found.answered(sampled)
        found.held(talk, answer, None)
    return found


def test_what_was_given_and_sampled_stands_in_its_order():
    talk = two_turns()
    assert talk.tokens == [1, 2, 3, 4, 5, 6]
    assert talk.ends == [TurnEnd(2, 3), TurnEnd(4, 6)]
    assert (talk.asks, talk.is_open) == (2, False)


def test_a_request_goes_on_if_it_repeats_all_and_adds_something():
    talk = two_turns()
    assert talk.goes_on_as([USER, ANSWER, MORE, LAST, USER], None)
    assert not talk.goes_on_as([USER, ANSWER, MORE, LAST], None)
    assert not talk.goes_on_as([USER, ANSWER, MORE], None)
    assert not talk.goes_on_as([USER, ANSWER, MORE, LAST, USER], [{"type": "function"}])
    assert not Transcript(0, 0).goes_on_as([USER], None)


def test_a_request_that_differs_shares_whole_turns_before_that():
    talk = two_turns()
    assert talk.last_end([USER, ANSWER, USER], None) == TurnEnd(2, 3)
    assert talk.last_end([USER, ANSWER, MORE, LAST], None) == TurnEnd(2, 3), "something has to be new"
    assert talk.last_end([USER, ANSWER, MORE, LAST, MORE], None) == TurnEnd(4, 6)
    assert talk.last_end([USER, LAST, MORE], None) == TurnEnd(0, 0)
    assert talk.last_end([USER, ANSWER, MORE], [{"type": "function"}]) == TurnEnd(0, 0)
