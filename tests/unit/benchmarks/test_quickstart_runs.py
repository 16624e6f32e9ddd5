"""Which runs of a benchmark are made again."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.quickstart_runs import QuickstartRuns


@pytest.mark.parametrize(("ending", "is_made_again"), [("done", False), ("failed", True), ("stopped", True)])
def test_only_a_run_that_has_come_to_its_end_is_not_made_again(tmp_path, monkeypatch, ending, is_made_again):
    runs = QuickstartRuns("a_benchmark")
    runs.folder = tmp_path
    for name, how in (("model_0", "done"), ("one", ending)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"ending": how}))
    launched: list[str] = []

    def run(command, **_):
        launched.extend(word for word in command if word.startswith("run.name="))
        return SimpleNamespace(returncode=1, stderr="it failed again")

    monkeypatch.setattr(subprocess, "run", run)
    assert runs.make("one", 0, (), every_steps=1) is not is_made_again
    assert launched == ["run.name=one"] * is_made_again
