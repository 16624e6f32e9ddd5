"""What a run wrote beside its journal is shown as far as it makes sense, and not believed."""

import os

import pytest

from controller.history.metric_lines import LINES_PER_POINT
from controller.view import written
from controller.view.written import (
    KNOWN_BYTES,
    GrowingLines,
    Written,
    by_source,
    columns_of,
    lines_of,
    newest_of,
    said_in,
)
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


def test_a_text_that_is_no_utf_8_damages_no_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(
        b'{"step": 1, "by": "\xff"}\n{"step": 2, "by": "\xe2\x80\xa8", "a": 123456789012345678901234}\n'
    )
    assert [line["step"] for line in lines_of(file)] == [1, 2]
    assert lines_of(file)[1]["a"] == 123456789012345678901234


@pytest.mark.parametrize("bad", [b"[1, 2]\n", b"7\n", b"\xff\xfe\n", b"[" * 5_000 + b"\n", b'{"st\n'])
def test_a_damaged_file_is_one_sentence_and_empty_for_whom_it_only_concerns_by_the_way(tmp_path, bad):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + bad)
    run = Written(tmp_path)
    with pytest.raises(RunError, match=r"Line 2 of .* delete the line"):
        run.lines("metrics.jsonl")
    assert run.readable("metrics.jsonl") == []
    (told,) = run.damaged()
    assert told["owner"] == "metrics.jsonl"
    assert "Line 2" in told["evidence"]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    assert run.damaged() == []
    assert run.readable("metrics.jsonl") == [{"step": 1}]


def test_only_what_is_new_of_a_file_is_read_and_another_file_from_its_beginning(tmp_path, monkeypatch):
    file, parsed = tmp_path / "metrics.jsonl", []
    value_of = written._value
    monkeypatch.setattr(written, "_value", lambda text: parsed.append(text) or value_of(text))
    lines = GrowingLines(file)
    assert lines.read() == []
    file.write_text('{"step": 1}\n{"st')
    first = lines.read()
    assert first == [{"step": 1}]
    assert lines.read() is first, "nothing is new"
    with file.open("a") as more:
        more.write('ep": 2}\n')
    assert lines.read() == [{"step": 1}, {"step": 2}]
    assert first == [{"step": 1}], "who holds a list keeps it"
    assert parsed == [b'{"step": 1}', b'{"step": 2}']
    (tmp_path / "other").write_text('{"step": 1}\n{"step": 9}\n{"step": 10}\n')
    (tmp_path / "other").rename(file)
    assert [line["step"] for line in lines.read()] == [1, 9, 10]
    file.write_text('{"step": 1}\n{"step": 7}\n{"step": 8}\n{"step": 9}\n')  # in its place, and longer
    assert [line["step"] for line in lines.read()] == [1, 7, 8, 9]
    with file.open("a") as more:
        more.write("half\n")
    for _ in range(2):
        with pytest.raises(RunError, match="Line 5 "):
            lines.read()
    file.unlink()
    assert lines.read() == []


def test_a_long_file_is_read_in_pieces_and_answered_with_some_points_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(written, "AT_ONCE_BYTES", 1_000)
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {i}, "loss": {i % 7}, "of": {{"a": 1}}}}\n' for i in range(1, 9_001)))
    run = Written(tmp_path)
    lines = run.lines("metrics.jsonl")
    assert len(lines) == 9_000
    assert lines[-1] == {"step": 9_000, "loss": 9_000 % 7}, "no more of a line is held than its numbers"
    assert run.lines("metrics.jsonl") is lines
    found = columns_of(lines)
    assert len(found["step"]) < 2_500
    assert sum(found[LINES_PER_POINT]) == 9_000
    with file.open("a") as more:
        more.write('{"step": 9001}\nhalf\n')
    with pytest.raises(RunError, match="Line 9002 "):
        run.lines("metrics.jsonl")


def test_who_has_no_patience_gets_a_piece_nearer_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(written, "AT_ONCE_BYTES", 100)
    file = tmp_path / "metrics.jsonl"
    wide = f'{{"step": 2, "x": "{"x" * 300}"}}\n'  # more than one piece
    file.write_text('{"step": 1}\n' * 20 + wide + '{"step": 3}\n' * 20)
    run, ways = Written(tmp_path), []
    while (way := run.way(lambda: True)) is not None:
        ways.append(way)
        assert len(ways) < 20
    assert len(ways) > 3
    assert ways == sorted(set(ways))
    assert {(name, size) for name, _, size in ways} == {("metrics.jsonl", file.stat().st_size)}
    assert len(run.lines("metrics.jsonl")) == 41
    with file.open("a") as more:
        more.write("half\n")
    assert run.way(lambda: True) is None, "who shows a damaged file tells of it"


@pytest.mark.parametrize(
    ("text", "newest"),
    [
        ("", {}), ('{"step": 1', {}), ('{"step": 1}\n', {"step": 1}), ("half\n", {}),
        ('{"step": 1}\n{"step": 2}\n{"st', {"step": 2}), ('{"a": "' + "x" * 200 + '"}\n', {}),
    ],
)  # fmt: skip
def test_the_newest_line_is_read_from_the_end(tmp_path, monkeypatch, text, newest):
    monkeypatch.setattr(written, "AT_ONCE_BYTES", 100)
    assert newest_of(tmp_path / "metrics.jsonl") == {}
    (tmp_path / "metrics.jsonl").write_text(text)
    assert newest_of(tmp_path / "metrics.jsonl") == newest


def test_another_file_that_ends_alike_is_read_from_its_beginning(tmp_path):
    file, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    end = f'{{"step": 2, "x": "{"x" * KNOWN_BYTES}"}}\n'
    file.write_text('{"step": 1}\n' + end)
    lines = GrowingLines(file)
    assert lines.read()[0] == {"step": 1}
    other.write_text('{"step": 7}\n' + end)
    other.rename(file)
    assert lines.read()[0] == {"step": 7}


def test_alarms_are_judged_once_for_the_same_lines(tmp_path, monkeypatch):
    file, judged = tmp_path / "metrics.jsonl", []
    monkeypatch.setattr(written, "alarms", lambda lines, more, *, bound: judged.append(len(lines)) or [])
    file.write_text('{"step": 1}\n{"step": 2}\n')
    run = Written(tmp_path)
    for steps in (2, 2, 1, 1, 2):
        assert run.alarms(steps, bound=1) == []
    assert judged == [2, 1, 2]
    with file.open("a") as more:
        more.write('{"step": 3}\n')
    run.alarms(3, bound=1)
    assert judged == [2, 1, 2, 3]


def test_a_controller_that_writes_nothing_is_named_with_what_to_do(tmp_path):
    assert written.quiet_s(tmp_path, 1_000.0) == 0.0
    for name, at in (("run.db", 900), ("run.db-wal", 950), ("status.json", 940)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    assert written.quiet_s(tmp_path, 960.0) == 10.0
    assert written.not_heard(10.0) == []
    (told,) = written.not_heard(written.quiet_s(tmp_path, 1_000.0))
    assert told["owner"] == "controller"
    assert "nothing for 50 s" in told["evidence"]
    assert "stacks" in told["remedy"]


def test_a_file_that_nobody_can_look_at_keeps_nobody_from_an_answer_either(tmp_path):
    (tmp_path / "run.db-wal").symlink_to("run.db-wal")
    assert written.quiet_s(tmp_path, 1_000.0) == 0.0


def test_a_file_that_goes_while_it_is_looked_at_keeps_nobody_from_an_answer(tmp_path, monkeypatch):
    (tmp_path / "run.db-wal").write_text("all of it is in run.db by now")
    look = os.stat

    def last(path, *words, **more):
        found = look(path, *words, **more)
        if str(path).endswith("-wal"):
            os.unlink(path)
        return found

    monkeypatch.setattr(os, "stat", last)
    written.quiet_s(tmp_path, 1_000.0)
    assert not (tmp_path / "run.db-wal").exists()


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
