"""What a run wrote beside its journal is shown as far as it makes sense, and not believed."""

import os
import time

import pytest

from controller.view.written import Written, by_source, columns_of, lines_of, said_in, silent_s
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


def test_what_is_no_number_is_a_gap_in_a_curve(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": NaN, "kl": -Infinity, "reward": 1e999}\n{"step": 2, "loss": 0.5}\n')
    assert columns_of(lines_of(file)) == {"step": [1, 2], "loss": [None, 0.5]}


@pytest.mark.parametrize("bad", [b"[1, 2]\n", b"7\n", b"\xff\xfe\n", b"[" * 5_000 + b"\n", b'{"st\n'])
def test_a_damaged_file_is_one_sentence_and_empty_for_whom_it_only_concerns_by_the_way(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + bad)
    written = Written(tmp_path)
    with pytest.raises(RunError, match=r"Line 2 of .* delete the line"):
        written.lines("metrics.jsonl")
    assert written.readable("metrics.jsonl") == []
    (told,) = written.damaged()
    assert told["owner"] == "metrics.jsonl"
    assert "Line 2" in told["evidence"]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    assert written.damaged() == []
    assert written.readable("metrics.jsonl") == [{"step": 1}]


def test_a_run_is_silent_since_the_newest_file_that_its_controller_wrote(tmp_path):
    assert silent_s(tmp_path) is None
    for name, age in (("run.db", 500), ("status.json", 100), ("metrics.jsonl", 1)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert 100 <= silent_s(tmp_path) < 400
    os.utime(tmp_path / "status.json", (time.time() + 500,) * 2)
    assert silent_s(tmp_path) == 0, "a clock that was set back makes nobody hear from the future"


def test_evaluations_of_several_sources_have_a_curve_for_each():
    line = {
        "policy_version": 3,
        "pass@1": 0.5,
        "sources": {"math": {"pass@1": 0.75}, "code": {"pass@1": 0.25}},
    }
    found = columns_of([by_source(line), by_source({"policy_version": 6, "pass@1": 0.5})])
    assert found["pass@1 of math"] == [0.75, None]
    assert found["pass@1 of code"] == [0.25, None]
    for fewer in ({"math": {"pass@1": 1.0}}, [], None, 7):
        alone = line | {"sources": fewer}
        assert by_source(alone) == alone, "one source is the whole"
    assert by_source(line | {"sources": {"a": 3, "b": []}})["pass@1"] == 0.5
