"""Runs of the quickstart that begin with nothing."""

import subprocess

import pytest

from benchmarks import quickstart_seeds


class Launched(Exception):
    """The command line is known."""


def test_a_run_begins_without_what_an_earlier_one_of_its_seed_left(tmp_path, monkeypatch):
    left = tmp_path / "runs/quickstart_seeds/seed_0"
    (left / "model").mkdir(parents=True)

    def run(command, **_):
        assert not left.exists()
        raise Launched

    monkeypatch.setattr(quickstart_seeds, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Launched):
        quickstart_seeds.run(0, ["run.steps=1"])
