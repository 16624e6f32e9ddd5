"""A line of numbers for each response that is kept."""

import sqlite3
from math import isnan

import numpy as np
import pytest

from controller.durability.recording import Recording
from controller.history.sample_index import OLDEST, SampleIndex, lines_of_numbers, repeats, source_of
from tests.support.kept_samples import add_samples, kept, response
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    record(path, CONFIG)
    return path


def test_a_line_says_what_the_response_was():
    drifted = kept(6, 7, [
        response(0, [1, 2, 5], reward=1.0, advantage=0.5, versions=[4, 4, 5], logprobs=[-1, -1, -1],
                 trained=[-3, -1, 0]),
        response(2, [3], ending="length", versions=[5], logprobs=[-2], trained=[-2.5]),
    ])  # fmt: skip
    first, second = lines_of_numbers(drifted, {})
    assert (first["step"], first["group"], first["member"], first["length"]) == (6, 7, 0, 3)
    assert (first["reward"], first["advantage"]) == (1.0, 0.5)
    assert first["drift"] == pytest.approx((2 + 0 + 1) / 3)
    assert first["ages"] == 0b11
    assert not first["is_cut"]
    assert (second["member"], second["length"], second["ages"]) == (2, 1, 0b1)
    assert second["drift"] == pytest.approx(0.5)
    assert second["is_cut"]
    assert not first["is_equal"]


def test_given_tokens_have_no_age_and_no_drift():
    (line,) = lines_of_numbers(
        kept(6, 7, [response(0, [1, 2, 5], versions=[-1, 4, -1], logprobs=[-1], trained=[-1.25])]), {}
    )
    assert (line["ages"], line["length"]) == (0b10, 3)
    assert line["drift"] == pytest.approx(0.25)


def test_where_the_trainer_told_nothing_there_is_no_drift():
    (line,) = lines_of_numbers(kept(6, 7, [response(0, [1])]), {})
    assert isnan(line["drift"])


def test_a_group_without_signal_is_known_and_one_response_alone_is_none():
    equal = lines_of_numbers(kept(1, 1, [response(0, [1], reward=0.5), response(1, [1], reward=0.5)]), {})
    assert equal["is_equal"].all()
    assert not lines_of_numbers(kept(1, 1, [response(0, [1], reward=0.5)]), {})["is_equal"].any()


def test_very_old_tokens_count_as_one_age():
    (line,) = lines_of_numbers(kept(200, 1, [response(0, [1, 2], versions=[3, 90])]), {})
    assert int(line["ages"]) == 1 << OLDEST


def test_a_reward_that_is_no_number_is_none():
    (line,) = lines_of_numbers(kept(1, 1, [response(0, [1], reward=float("inf"))]), {})
    assert isnan(line["reward"])


def test_what_is_said_again_and_again_counts():
    assert repeats(np.array([1, 2, 3], "<i4")) == 0
    assert repeats(np.arange(20, dtype="<i4")) == 0
    assert repeats(np.array([7] * 13, "<i4")) == pytest.approx(0.9)
    assert repeats(np.array([1, 2, 3, 4] * 2, "<i4")) == pytest.approx(1 / 5)
    assert repeats(np.array([-1, -2, -3, -4], "<i4")) == 0


def test_sources_are_those_that_rows_name():
    sources = {}
    for name in ("math", "code", "math"):
        lines_of_numbers(kept(1, 1, [response(0, [1])], row={"source": name}), sources)
    assert sources == {"math": 0, "code": 1}
    for row in (b"[]", b"7", b'{"source": 3}', b"{}"):
        assert source_of(row) == ""


def test_a_group_whose_turns_have_other_advantages_has_signal_whatever_its_rewards_are():
    def is_equal(rewards, outcomes):
        made = [response(n, [1, 2], reward=reward) for n, reward in enumerate(rewards)]
        sample = kept(1, 1, made)
        for item, by_turn in zip(sample.facts["items"], outcomes, strict=True):
            item["outcomes"] = by_turn
        return lines_of_numbers(sample, {})["is_equal"].all()

    assert not is_equal((0.5, 0.5), ([0.5, 0.0], [-0.5, 0.0]))
    assert is_equal((0.5, 1.0), ([0.0, 0.0], [0.0, 1e-9]))


def test_equal_prompts_have_equal_digests_and_an_agents_row_stands_for_its_prompt():
    def digest(**more):
        return lines_of_numbers(kept(1, 1, [response(0, [1])], **more), {})[0]["prompt"]

    assert digest(prompt=[1, 2]) == digest(prompt=[1, 2], row={"q": 2}) != digest(prompt=[2, 1])
    assert digest(prompt=[], row={"q": 1}) != digest(prompt=[], row={"q": 2})


def test_all_are_read_once_and_late_looks_go_on_where_they_were(run):
    add_samples(run, [kept(step, step, [response(0, [step])]) for step in range(1, 6)])
    with Recording(run) as recording:
        index = SampleIndex()
        lefts = [index.follow(recording, lambda: True) for _ in range(5)]
        assert lefts == [4, 3, 2, 1, 0]
        assert index.table["step"].tolist() == [1, 2, 3, 4, 5]
        assert index.follow(recording, lambda: True) == 0


def test_what_the_run_has_deleted_is_forgotten(run):
    add_samples(run, [kept(step, step, [response(0, [step])]) for step in (1, 2)])
    index = SampleIndex()
    index.follow(Recording(run), lambda: False)
    assert len(index.table) == 2
    with sqlite3.connect(run / "run.db") as db:
        db.execute("DELETE FROM samples WHERE step = 1")
    db.close()
    index.follow(Recording(run), lambda: False)
    assert index.table["step"].tolist() == [2]


def test_a_damaged_sample_is_named_and_the_others_are_there(run):
    add_samples(run, [kept(step, step, [response(0, [step])]) for step in (1, 2)])
    with sqlite3.connect(run / "run.db") as db:
        db.execute("UPDATE samples SET tokens = x'00000000' WHERE step = 1")
    db.close()
    index = SampleIndex()
    assert index.follow(Recording(run), lambda: False) == 0
    assert index.table["step"].tolist() == [2]
    assert "group 1, step 1, has changed" in index.damaged[1, 1]
