"""Runs of the quickstart that begin with nothing."""

import subprocess

import pytest

from benchmarks import quickstart_seeds


class Launched(Exception):
    """The command line is known."""


def test_a_run_that_was_interrupted_is_not_gone_on_with(monkeypatch):
    def run(command, **_):
        assert "run.resume=never" in command
        raise Launched

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Launched):
        quickstart_seeds.run(0, ["run.steps=1"])
