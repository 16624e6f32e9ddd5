"""`launch.py test`: when vLLM is left out and why, and what the exit code comes from."""

import json
import shutil
import sys
from collections import namedtuple

import pytest

import install
from controller.cli import testing

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Where the vLLM environment would be; there is none yet, and one may be installed."""
    path = tmp_path / "environment"
    monkeypatch.setattr(testing, "VLLM_ENVIRONMENT", path)
    monkeypatch.setattr(testing, "find_spec", lambda name: None)
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    return path


def pretend_installed(environment):
    """An environment that is complete by its stamp, whose interpreter is this one."""
    python = install.python_of(environment)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    stamp = {"project": install._project_hash(), "extras": testing.VLLM_EXTRAS}
    (environment / "staleflow.json").write_text(json.dumps(stamp))


def test_too_little_disk_or_a_ban_on_installing_leaves_vllm_out_in_words(environment, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 3.2e9))
    assert "3.2 GB of disk are free" in testing.why_no_vllm()
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    assert "forbids" in testing.why_no_vllm()
    pretend_installed(environment)
    assert testing.why_no_vllm() == ""
