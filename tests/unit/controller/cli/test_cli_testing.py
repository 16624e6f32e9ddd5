"""`launch.py test`: when vLLM is left out and why, and what the exit code comes from."""

import shutil
from collections import namedtuple

import pytest

from controller.cli import testing
from tests.support.vllm_environment import not_installed, pretend_installed

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Where the vLLM environment would be; there is none yet, and one may be installed."""
    return not_installed(tmp_path / "environment", monkeypatch)


def test_too_little_disk_or_a_ban_on_installing_leaves_vllm_out_in_words(environment, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 3.2e9))
    assert "3.2 GB of disk are free" in testing.why_no_vllm()
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")
    assert "forbids" in testing.why_no_vllm()
    pretend_installed(environment)
    assert testing.why_no_vllm() == ""
