"""What a run wrote beside its journal is shown as far as it makes sense, and not believed."""

import pytest

from controller.view.written import columns_of, lines_of, said_in
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


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "a": 2}\n{"step": 2, "a": true, "b": 0.5}\n{"step"')
    assert columns_of(lines_of(file)) == {"step": [1, 2], "a": [2, None], "b": [None, 0.5]}
    file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"Line 2 of .*metrics.jsonl is no JSON"):
        lines_of(file)
