"""Samples are searched by the server, a page at a time, and no answer is longer than its time."""

import sqlite3

import pytest

from controller.view import shown_samples
from tests.support.kept_samples import add_samples, kept, response
from tests.support.shown_run import Browser, recorded

FOUND = "/api/runs/0/samples/found"


@pytest.fixture
def run(tmp_path):
    path = recorded(tmp_path / "run")
    add_samples(path, [
        kept(1, 3, [response(0, [1, 2], reward=1.0, advantage=0.5), response(1, [3], ending="length")],
             row={"source": "math"}),
        kept(2, 8, [response(0, [7] * 9, reward=0.5, versions=[0] * 4 + [1] * 5, logprobs=[-1] * 9,
                             trained=[-2] * 9)]),
    ])  # fmt: skip
    return path


def names(found):
    return [(one["step"], one["group"], one["member"]) for one in found["found"]]


def test_a_page_of_what_was_asked_for_with_a_few_numbers_of_each(run):
    status, found = Browser(run).json(f"{FOUND}?sort=drift")
    assert status == 200
    assert names(found) == [(2, 8, 0), (1, 3, 1), (1, 3, 0)]
    assert found["found"][0] == {
        "step": 2, "group": 8, "member": 0, "reward": 0.5, "advantage": 0.0, "drift": 1.0,
        "repeats": pytest.approx(5 / 6, abs=1e-6), "length": 9, "age": 1, "versions": [0, 1],
        "is_cut": False, "is_equal": False, "source": "", "text": "7 " * 9,
    }  # fmt: skip
    assert found["found"][1]["drift"] is None
    assert found["found"][1]["is_cut"]
    assert (found["count"], found["page"], found["left"]) == (3, 0, 0)
    assert found["sources"] == ["math"]
    assert found["refused"] == ""


def test_filters_of_the_address_count(run):
    browser = Browser(run)
    for words, expected in (
        ("source=math", [(1, 3, 1), (1, 3, 0)]),
        ("only=cut", [(1, 3, 1)]),
        ("of_step=2", [(2, 8, 0)]),
        ("text=1%202", [(1, 3, 0)]),
        ("reward_from=0.4&sort=reward&order=up", [(2, 8, 0), (1, 3, 0)]),
    ):
        assert names(browser.json(f"{FOUND}?{words}")[1]) == expected, words


def test_the_same_prompt_is_asked_for_by_the_digest_that_a_sample_tells(run):
    browser = Browser(run)
    digest = browser.json("/api/runs/0/samples/2/8")[1]["prompt_digest"]
    assert len(names(browser.json(f"{FOUND}?prompt={digest}")[1])) == 3
    assert names(browser.json(f"{FOUND}?prompt={'0' * 16}")[1]) == []


def test_what_makes_no_sense_is_said_and_leaves_nothing_out(run):
    status, found = Browser(run).json(f"{FOUND}?of_step=x&only=cut")
    assert status == 200
    assert found["refused"] == "'x' is no step; expected a whole number from 0."
    assert found["count"] == 3


def test_where_the_text_was_found_is_shown(tmp_path):
    run = recorded(tmp_path / "run")
    add_samples(run, [kept(1, 1, [response(0, [*range(1, 60), 777, *range(60, 200)])])])
    (one,) = Browser(run).json(f"{FOUND}?text=777")[1]["found"]
    assert "777" in one["text"]
    assert one["text"].startswith("…")
    assert len(one["text"]) <= shown_samples.BEGINNING + 1


def test_an_answer_that_took_its_time_says_what_is_left_and_the_next_goes_on(run, monkeypatch):
    monkeypatch.setattr(shown_samples, "FIND_S", -1.0)
    browser = Browser(run)
    first, second = browser.json(f"{FOUND}?sort=reward")[1], browser.json(f"{FOUND}?sort=reward")[1]
    assert (first["left"], names(first)) == (1, [(2, 8, 0)])
    assert (second["left"], second["count"]) == (0, 3)


def test_a_damaged_sample_is_named_and_the_others_are_found(run):
    with sqlite3.connect(run / "run.db") as db:
        db.execute("UPDATE samples SET facts = '{}' WHERE step = 1")
    db.close()
    found = Browser(run).json(f"{FOUND}?sort=reward")[1]
    assert names(found) == [(2, 8, 0)]
    assert "group 3, step 1" in found["damaged"][0]


def test_a_run_without_samples_has_none_to_be_found(tmp_path):
    found = Browser(recorded(tmp_path / "run")).json(f"{FOUND}?text=x")[1]
    assert (found["found"], found["count"], found["left"]) == ([], 0, 0)
