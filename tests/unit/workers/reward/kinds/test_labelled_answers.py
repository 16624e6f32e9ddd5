"""Extraction from chat answers on labels that a person gave: 200 and more with those of test_answers.py."""

import pytest

from tests.unit.workers.reward.kinds import labelled_answers, test_answers
from workers.reward.kinds.answers import find_answer


@pytest.mark.parametrize(("response", "label"), labelled_answers.BOXES + labelled_answers.MORE_BOXES)
def test_a_box_is_read_as_a_person_reads_it(response, label):
    assert find_answer(response) == (label, True)


@pytest.mark.parametrize(("response", "label"), labelled_answers.WORDS + labelled_answers.LAST_LINES)
def test_words_and_last_lines_are_read_as_a_person_reads_them(response, label):
    found = find_answer(response)
    assert found is not None
    assert (found[0].rstrip("."), found[1]) == (label, False)


@pytest.mark.parametrize("response", labelled_answers.NONE)
def test_nothing_is_read_where_nothing_is(response):
    assert find_answer(response) is None


def test_there_are_as_many_as_promised():
    ours = [*labelled_answers.BOXES, *labelled_answers.MORE_BOXES, *labelled_answers.WORDS]
    rows = [*ours, *labelled_answers.LAST_LINES, *test_answers.BOXED, *test_answers.SAID, *test_answers.LINES]
    nothing = {*labelled_answers.NONE, *test_answers.NOTHING}
    assert len({response for response, _ in rows}) + len(nothing) >= 200
