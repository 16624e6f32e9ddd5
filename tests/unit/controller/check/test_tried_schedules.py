"""A schedule of the user's is tried on the sources that the run has."""

import pytest

from controller.check.problems import check
from controller.config.load import load_config
from tests.support.small_project import make_project

RULES = """
def by_name(view):
    weights = {"rows": 1.0, "extra": 2.0 + view.step}
    return [weights[source.name] for source in view.sources]


def by_place(view):
    return [1.0, 2.0 + view.step]


def short(view):
    return [1.0]
"""


def errors(rule: str) -> list[str]:
    sources = "data.sources=[{path: rows.jsonl}, {path: more.jsonl, name: extra}]"
    config = load_config("run.yaml", (sources, 'data.path=""', f"data.schedule=rules.py:{rule}"))
    return [finding.text for finding in check(config) if finding.level == "error"]


@pytest.mark.usefixtures("answered_here")
def test_a_schedule_is_tried_with_the_sources_of_the_run(tmp_path, monkeypatch):
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 9)
    (tmp_path / "rules.py").write_text(RULES)
    assert errors("by_name") == []
    assert errors("by_place") == []
    [text] = errors("short")
    assert "answered [1.0], which are 1 weights for 2 sources" in text
