"""Samples are found by what they are and by what they say, a page at a time."""

import pytest

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.history.sample_search import PER_PAGE, SampleQuery, SampleSearch, query_of
from protocol.errors import RunError
from tests.support.kept_samples import add_samples, kept, response
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG

TEXTS = {(1, 1): ("What?", {0: "Yes", 1: "No"}), (2, 5): ("why", {0: "because YES"}), (4, 9): ("", {0: "ok"})}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "run"
    record(path, CONFIG)
    add_samples(path, [
        kept(1, 1, [response(0, [1], reward=1.0), response(1, [1, 2], reward=0.25, ending="length")]),
        kept(2, 5, [response(0, [7] * 9, reward=0.5, advantage=-1.0, versions=[0] * 4 + [1] * 5,
                             logprobs=[-1] * 9, trained=[-2] * 9)],
             row={"source": "math"}, prompt=(3,)),
        kept(4, 9, [response(0, [1], reward=0.5, versions=[1]), response(1, [], reward=0.5)]),
    ])  # fmt: skip
    return Recording(path)


def test_answers_that_failed_in_an_evaluation_are_found_by_that(tmp_path):
    record(tmp_path / "run", CONFIG)
    answers = [response(0, [1], reward=0.0, versions=[1])]
    held = kept(2, FIRST_EVALUATION_GROUP, answers)
    add_samples(tmp_path / "run", [kept(2, 5, [response(1, [1], reward=0.0)]), held])
    recording = Recording(tmp_path / "run")
    assert found(recording, texts={}, only=("held_out",)) == [(2, 0)]
    assert len(found(recording, texts={}, step=2)) == 2


def found(recording, *, texts=TEXTS, **words):
    search = SampleSearch()
    known = search.find(recording, SampleQuery(**words), texts=texts.get, is_late=lambda: False)
    assert known.left == 0
    return [(int(line["step"]), int(line["member"])) for line in known.lines]


ALL = [(4, 1), (4, 0), (2, 0), (1, 1), (1, 0)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, ALL),
        ({"step": 1}, [(1, 1), (1, 0)]),
        ({"group": 9}, [(4, 1), (4, 0)]),
        ({"version": 1}, [(4, 0), (2, 0)]),
        ({"version": 0}, [(2, 0), (1, 1), (1, 0)]),
        ({"version": 3}, []),
        ({"reward_from": 0.5}, [(4, 1), (4, 0), (2, 0), (1, 0)]),
        ({"reward_from": 0.3, "reward_to": 0.5}, [(4, 1), (4, 0), (2, 0)]),
        ({"age": 1}, [(4, 0), (2, 0)]),
        ({"age": 2}, [(4, 0)]),
        ({"source": "math"}, [(2, 0)]),
        ({"source": "nowhere"}, []),
        ({"only": ("cut",)}, [(1, 1)]),
        ({"only": ("partial",)}, [(2, 0)]),
        ({"only": ("equal",)}, [(4, 1), (4, 0)]),
        ({"only": ("equal", "cut")}, []),
        ({"text": "yes"}, [(2, 0), (1, 0)]),
        ({"text": "WHAT"}, [(1, 1), (1, 0)]),
        ({"text": "yes", "step": 2}, [(2, 0)]),
        ({"sort": "reward"}, [(1, 0), (4, 1), (4, 0), (2, 0), (1, 1)]),
        ({"sort": "reward", "is_ascending": True}, [(1, 1), (4, 1), (4, 0), (2, 0), (1, 0)]),
        ({"sort": "length"}, [(2, 0), (1, 1), (4, 0), (1, 0), (4, 1)]),
        ({"sort": "advantage", "is_ascending": True}, [(2, 0), (4, 1), (4, 0), (1, 1), (1, 0)]),
        ({"sort": "drift"}, [(2, 0), (4, 1), (4, 0), (1, 1), (1, 0)]),
        ({"sort": "drift", "is_ascending": True}, [(2, 0), (4, 1), (4, 0), (1, 1), (1, 0)]),
        ({"sort": "repeats"}, [(2, 0), (4, 1), (4, 0), (1, 1), (1, 0)]),
        ({"is_ascending": True}, ALL[::-1]),
    ],
)
def test_filters_and_sorts(recording, words, expected):
    assert found(recording, **words) == expected


def test_the_same_prompt_is_found_in_other_steps(recording):
    search = SampleSearch()
    search.find(recording, SampleQuery(), texts=TEXTS.get, is_late=lambda: False)
    digest = int(search.index.table["prompt"][0])
    assert found(recording, prompt=digest) == [(4, 1), (4, 0), (1, 1), (1, 0)]


def test_a_search_that_is_late_says_what_is_left_and_goes_on_there(recording):
    search, asked, read = SampleSearch(), SampleQuery(text="yes"), []

    def texts(key):
        read.append(key)
        return TEXTS.get(key)

    def look(asked):
        known = search.find(recording, asked, texts=texts, is_late=lambda: True)
        return known.left, known.count

    assert [look(asked) for _ in range(3)] == [(2, 0), (1, 1), (0, 2)]
    assert sorted(read) == sorted(TEXTS), "each is read once"
    assert look(asked) == (0, 2)
    assert len(read) == 3
    other = SampleQuery(text="ok")  # the lines are there, and the texts are not
    assert [look(other) for _ in range(3)] == [(2, 1), (1, 1), (0, 1)]


def test_old_searches_are_forgotten(recording):
    search, read = SampleSearch(), []
    for number in (0, 1, 2, 3, 4, 4, 0):
        search.find(recording, SampleQuery(text=f"{number}"), texts=read.append, is_late=lambda: False)
    assert len(read) == 6 * 3


def test_a_page_has_its_part_and_one_that_is_not_there_is_the_last(tmp_path):
    path = tmp_path / "run"
    record(path, CONFIG)
    add_samples(path, [kept(9, 1, [response(member, [1]) for member in range(PER_PAGE + 3)])])
    search = SampleSearch()

    def page(number):
        query = SampleQuery(page=number)
        known = search.find(Recording(path), query, texts=TEXTS.get, is_late=lambda: False)
        return known.page, known.count, len(known.lines)

    assert [page(number) for number in (0, 1, 7)] == [(0, 53, 50), (1, 53, 3), (1, 53, 3)]


def test_words_of_an_address_are_read():
    words = {
        "of_step": "3",
        "reward_from": "-0.5",
        "only": "cut,equal",
        "order": "up",
        "prompt": "0f",
        "age": "2",
    }
    assert query_of(words) == SampleQuery(
        step=3, reward_from=-0.5, only=("cut", "equal"), is_ascending=True, prompt=15, age=2
    )
    assert query_of({}).is_empty
    assert query_of({"part": "4"}).is_empty
    assert not query_of({"sort": "drift"}).is_empty


@pytest.mark.parametrize(
    "words",
    [
        {"of_step": "x"}, {"of_step": "-1"}, {"of_step": "9" * 16}, {"version": "1.5"},
        {"reward_from": "nan"},
        {"reward_to": "all"}, {"only": "cut,nothing"}, {"sort": "colour"}, {"prompt": "xyz"},
        {"prompt": "f" * 17}, {"text": "x" * 201}, {"part": "²"}, {"age": "old"},
    ],
)  # fmt: skip
def test_words_that_make_no_sense_are_refused_in_a_sentence(words):
    with pytest.raises(RunError, match=r"expected"):
        query_of(words)
