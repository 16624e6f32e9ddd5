"""What a run wrote beside its journal is shown as far as it makes sense, and not believed."""

import os

import pytest

from controller.view.written import columns_of, controller_of, lines_of, said_in
from protocol.errors import RunError


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (
            '{"steps": 4, "reason": "All made.", "published_version": "x"}',
            {"steps": 4, "reason": "All made."},
        ),
        ('{"steps": "four"}', {}),
        *((text, {"steps": 3}) for text in ("", "[1]", "[" * 5000, "\xff", '{"steps": 4')),
    ],
)
def test_a_summary_counts_before_the_status_and_each_word_as_what_it_has_to_be(tmp_path, summary, expected):
    (tmp_path / "status.json").write_text('{"steps": 3, "waiting_for": ["x"]}')
    assert said_in(tmp_path) == {"steps": 3}
    (tmp_path / "summary.json").write_bytes(summary.encode("latin-1"))
    assert said_in(tmp_path) == expected


def test_a_run_that_has_written_nothing_says_nothing(tmp_path):
    assert said_in(tmp_path) == {}
    assert lines_of(tmp_path / "metrics.jsonl") == []
    assert controller_of(tmp_path) is None


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "a": 2}\n{"step": 2, "a": true, "b": 0.5}\n{"step"')
    assert columns_of(lines_of(file)) == {"step": [1, 2], "a": [2, None], "b": [None, 0.5]}
    file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"Line 2 of .*metrics.jsonl is no JSON"):
        lines_of(file)


def test_the_controller_of_a_run_is_the_process_that_its_lock_names_if_it_lives(tmp_path):
    run, lock = tmp_path / "run", tmp_path / ".run.lock"
    lock.write_text(str(os.getpid()))
    assert controller_of(run) == os.getpid()
    for words in ("999999999", "nobody", ""):
        lock.write_text(words)
        assert controller_of(run) is None
