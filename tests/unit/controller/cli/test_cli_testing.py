"""`launch.py test`: when vLLM is left out and why, and what the exit code comes from."""

import json
import shutil
import subprocess
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


def test_a_package_that_cannot_be_had_leaves_vllm_out_and_fails_nothing(environment, monkeypatch, capfd):
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    assert testing.test_vllm("") == 0
    said = capfd.readouterr().out
    assert "vLLM is left out: it could not be installed" in said
    assert "pip ended with code 1" in said
    assert not install.is_complete(environment, testing.VLLM_EXTRAS)


@pytest.mark.parametrize(("line", "code"), [("assert True", 0), ("assert False", 1)])
def test_a_test_of_vllm_that_fails_fails_the_command(environment, monkeypatch, tmp_path, line, code):
    pretend_installed(environment)
    file = tmp_path / "test_one.py"
    file.write_text(f"def test_one():\n    {line}\n")
    monkeypatch.setattr(testing, "VLLM_TESTS", [str(file), "-p", "no:cacheprovider"])
    assert testing.test_vllm("") == code


def test_named_tests_are_run_alone(tmp_path):
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    pass\n")
    words = [sys.executable, str(testing.ROOT / "launch.py"), "test", str(file)]
    done = subprocess.run([*words, "-p", "no:cacheprovider"], capture_output=True, text=True, check=True)
    assert "1 passed" in done.stdout
    assert "vLLM" not in done.stdout


TWO_TESTS = """
import pytest

@pytest.mark.thorough
def test_long():
    pass

def test_short():
    pass
"""


@pytest.mark.parametrize(
    ("option", "outcome"), [([], "1 passed, 1 deselected"), (["--thorough"], "2 passed")]
)
def test_long_sweeps_are_run_when_they_are_asked_for(tmp_path, option, outcome):
    file = tmp_path / "test_two.py"
    file.write_text(TWO_TESTS)
    words = [sys.executable, str(testing.ROOT / "launch.py"), "test", *option, str(file)]
    settings = ["-c", str(testing.ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *settings], capture_output=True, text=True, check=True)
    assert outcome in done.stdout
