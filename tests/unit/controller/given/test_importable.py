"""A callable is named by the path that workers import, or refused with a reason that is true."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from controller.given.importable import import_path
from protocol.errors import ConfigError

ROOT = Path(__file__).parents[4]
SCRIPT = """
from controller import Config, Controller

def score(completion):
    return 1.0

try:
    print(Controller(Config(), reward=score).config.reward.function)
except Exception as error:
    print(error)
"""


def said(script: Path) -> str:
    """What a program says."""
    command, environment = [sys.executable, str(script)], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_script_is_named_by_its_file_and_one_without_py_is_refused(tmp_path):
    """Workers ended later, with `No module named '/home/me/train'`."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "train").write_text(SCRIPT)
    assert said(tmp_path / "train.py") == f"{tmp_path}/train.py:score"
    told = said(tmp_path / "train")
    assert told.startswith(
        f"The reward is `score` of {tmp_path}/train, which workers, being other processes,"
    )
    assert "does not end in `.py`. Rename it, or put" in told


def test_a_program_in_an_archive_has_no_file_and_hears_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SCRIPT)
    assert "module or script that is a file on the disk. Put `def score" in said(tmp_path / "app.zip")


@pytest.mark.parametrize("what", ["reward", "agent"])
def test_what_cannot_be_called_is_refused_whatever_module_holds_it(what):
    """An agent of 5 was taken for a variable of some module that is 5."""
    with pytest.raises(ConfigError, match=f"The {what} is 5; expected a function"):
        import_path(5, what=what)
    with pytest.raises(ConfigError, match=rf"called\. An import path is given as {what}\.function\."):
        import_path("rewards.py:score", what=what)
