"""The environment of vLLM that `launch.py test` would install, in a folder of a test."""

import json
import sys
from pathlib import Path

import pytest

import install
from controller.cli import testing


def not_installed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let it be at this path, where there is nothing yet, and where it may be installed."""
    monkeypatch.setattr(testing, "VLLM_ENVIRONMENT", path)
    monkeypatch.setattr(testing, "find_spec", lambda name: None)
    monkeypatch.delenv("STALEFLOW_NO_INSTALL", raising=False)
    return path


def pretend_installed(environment: Path) -> None:
    """An environment that is complete by its stamp, whose interpreter is this one."""
    python = install.python_of(environment)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    stamp = {"project": install._project_hash(), "extras": testing.VLLM_EXTRAS}
    (environment / "staleflow.json").write_text(json.dumps(stamp))
