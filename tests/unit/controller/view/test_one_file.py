"""A run as one HTML file: whole, without a request, and inert."""

import json
import re

import pytest

from controller.cli.main import main
from controller.view.one_file import SHOWN, one_file
from controller.view.shown_run import ShownRun
from tests.support.shown_run import recorded

HOSTILE = "</script><script>alert(1)</script><!--"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("one_file") / "run")


def answers_in(text):
    return json.loads(
        re.search(r'<script type="application/json" id="answers">(.*?)</script>', text, re.S)[1]
    )


def test_it_has_what_its_pages_ask_for(path):
    found = answers_in(one_file(ShownRun(path)))
    assert found["pages"] == list(SHOWN)
    assert found["found"]["/api/runs/0/now"]["steps"] == 4
    timeline = found["found"]["/api/runs/0/timeline"]
    assert timeline["passed"] == timeline["of"] > 0


def test_how_far_the_reading_is_is_told_meanwhile(path, monkeypatch):
    told, run, first = [], ShownRun(path), iter([False])
    join = run.join
    run.join = lambda within_s: next(first, None) is None and join()
    monkeypatch.setattr("controller.view.one_file.PART_S", 0.0)
    one_file(run, tell=told.append)
    last = ShownRun(path).facts()["last"]
    assert f"reading the newest moment: event {last // 2} of {last}" in told
    assert told[-1].startswith("reading the history: event ")
    assert told[-1].endswith(f" of {last}")


def test_it_names_no_other_place(path):
    text = one_file(ShownRun(path))
    assert "https://" not in text.replace("https://github.com/leeoniya/uPlot", "")
    assert not re.search(r'(src|href)="(?!#)', text)
    assert 'from "./' not in text


def test_a_damaged_line_of_metrics_is_said_where_they_would_be_and_the_rest_is_there(tmp_path):
    run = recorded(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "half\n')
    found = answers_in(one_file(ShownRun(run)))["found"]
    assert "Line 2 of" in found["/api/runs/0/metrics"]["error"]
    assert found["/api/runs/0/now"]["steps"] == 4


def test_what_a_model_says_ends_no_script(path, monkeypatch):
    monkeypatch.setattr(ShownRun, "samples", lambda run: {"kept": [(1, 1)], "has_text": True})
    monkeypatch.setattr(ShownRun, "sample", lambda run, step, group: {"prompt": HOSTILE})
    text = one_file(ShownRun(path))
    assert HOSTILE not in text
    assert answers_in(text)["found"]["/api/runs/0/samples/1/1"] == {"prompt": HOSTILE}


def test_the_command_writes_it_or_says_why_not(path, tmp_path, capsys):
    assert main(["view", str(path), "--export", str(tmp_path / "run.html")]) == 0
    assert "MB; any browser opens it" in capsys.readouterr().out
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert main(["view", str(path), str(path), "--export", str(tmp_path / "x.html")]) == 2
    assert main(["view", str(path), "--export", str(tmp_path / "none" / "x.html")]) == 2


def test_where_nothing_can_be_written_is_said_before_the_run_is_read(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("controller.view.one_file.one_file", lambda run, tell: pytest.fail("it was read"))
    for file in (tmp_path / "none" / "x.html", tmp_path):
        assert main(["view", str(path), "--export", str(file)]) == 2
        assert f"{file} cannot be written: expected a file in a folder" in capsys.readouterr().err
