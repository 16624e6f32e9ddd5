"""Tasksets by name, as far as that goes without verifiers; test_connected_verifiers.py has the rest."""

import sys

import pytest

from protocol.agents.tasksets import find_taskset, nested
from protocol.errors import ConfigError


def test_dots_lead_into_sections():
    assert nested({"size": 3, "task.judge.model": "m", "task.strict": True}) == {
        "size": 3, "task": {"judge": {"model": "m"}, "strict": True},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"'task.strict' leads into 'task', which has a value itself"):
        nested({"task": 1, "task.strict": True})


def test_without_verifiers_the_line_that_installs_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    with pytest.raises(ConfigError, match=r"needs the package `verifiers` 0.4.*pip install -e"):
        find_taskset("gsm8k", {})
