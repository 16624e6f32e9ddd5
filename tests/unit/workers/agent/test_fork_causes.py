"""Why a request begins another conversation of its episode."""

import pytest

from workers.agent.fork_causes import cause_of, cause_of_tokens
from workers.agent.messages import normal
from workers.agent.transcript import Transcript

SYSTEM = {"role": "system", "content": "be brief"}
TASK, MORE, LAST = ({"role": "user", "content": text} for text in ("task", "more", "last"))
ONE, TWO, THREE = ({"role": "assistant", "content": text} for text in ("one", "two", "three"))
OTHER = {"role": "user", "content": "other"}
SUMMARY = {"role": "user", "content": "so far: one, two"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
HELD = [SYSTEM, TASK, ONE, MORE, TWO, LAST, THREE]


def conversation(*talk, is_open=False):
    found = Transcript(0, 0)
    found.open([1, 2, 3])
    found.answered([7, 8])
    found.held(talk[:-1], talk[-1], None)
    found.is_open = is_open
    return found


def cause(*talk, tools=None, held=None):
    return cause_of(held or [conversation(*HELD)], [normal(message) for message in talk], tools)


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        ([*HELD, MORE], "template"),
        # what was said is another
        ([SYSTEM, TASK, {**ONE, "content": "ONE"}, MORE, TWO, LAST, THREE, MORE], "edited"),
        ([SYSTEM, OTHER, ONE, MORE, TWO, LAST, THREE, MORE], "edited"),
        ([{**SYSTEM, "content": "be long"}, TASK, ONE, MORE, TWO, LAST, THREE, MORE], "edited"),
        ([SYSTEM, TASK, ONE, MORE, TWO, OTHER], "edited"),  # it goes back, and on from there
        # something stands in the place of turns, or they are left out
        ([SYSTEM, TASK, SUMMARY, LAST, THREE, MORE], "compacted"),
        ([SYSTEM, TASK, SUMMARY], "compacted"),
        ([SYSTEM, TASK, ONE, SUMMARY, THREE, MORE], "compacted"),
        ([SYSTEM, SUMMARY, THREE, MORE], "compacted"),
        ([SYSTEM, TASK, TWO, LAST, THREE, MORE], "compacted"),
        ([SYSTEM, LAST, THREE, MORE], "compacted"),
        # nothing was changed
        ([SYSTEM, OTHER], "branched"),
        ([OTHER], "branched"),
        ([OTHER, {**ONE, "content": "an example"}, MORE], "branched"),
        ([SYSTEM, TASK], "branched"),
        ([SYSTEM, TASK, ONE, MORE], "branched"),
    ],
)
def test_causes_are_told_by_what_was_said_before(talk, expected):
    assert cause(*talk) == expected


def test_other_tools_are_an_edit_and_a_second_request_at_once_is_none():
    assert cause(*HELD, MORE, tools=TOOLS) == "edited"
    assert cause(*HELD, MORE, held=[conversation(*HELD, is_open=True)]) == "branched"


def test_the_nearest_conversation_counts_and_without_any_nothing_was_changed():
    aside = conversation(OTHER, ONE)
    assert cause(SYSTEM, TASK, SUMMARY, held=[aside, conversation(*HELD)]) == "compacted"
    assert cause(SYSTEM, TASK, SUMMARY, held=[aside]) == "branched"
    assert cause_of([], [normal(TASK)], None) == "branched"


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ([1, 2, 3, 7, 9], "edited"),
        ([1, 2, 3, 7, 8, 5], "branched"),  # all of it and more: another is being answered there
        ([1, 2, 3], "branched"),
        ([1, 2, 4, 7], "branched"),
        ([5], "branched"),
    ],
)
def test_token_ids_are_an_edit_where_they_differ_behind_the_first_that_were_given(whole, expected):
    assert cause_of_tokens([conversation(TASK, ONE)], whole) == expected
