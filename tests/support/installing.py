"""A start of launch.py that installs; what pip does there is a script."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIP = """#!/bin/sh
[ "$3" = -V ] && exit 0
sleep 1000 & echo $! > pids
echo $$ >> pids
echo Collecting something
wait
"""
"""At work for ever; the file pids has its processes."""
GATED_PIP = """#!/bin/sh
case "$*" in
  *-V) exit 0;;
  *launch.py*) echo "goes on in words: $@"; exit 0;;
esac
echo Collecting something
echo once >> installed
read line < gate
"""
"""At work until something is written to the FIFO gate; then it is the interpreter of the environment."""
INSTALLING = """
import pathlib, sys
import install
def make(environment, run=None):
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").write_text(pathlib.Path("pip").read_text())
    (environment / "bin" / "python").chmod(0o755)
if sys.argv[1:] == ["slow venv"]:
    sys.executable = str(pathlib.Path("pip").absolute())
else:
    install._create = make
install.BASE, install.NEEDED = ("a_module_of_nobody",), {"status": ()}
environment = install.ENVIRONMENT = pathlib.Path(".venv").absolute()
if sys.argv[1:] == ["was there"]:
    make(environment)
install.ROOT = pathlib.Path.cwd()
install.ensure(["status"])
"""


def started(
    folder: Path,
    pip: str,
    mode: str = "",
    *,
    before: Sequence[str] = (),
    until: str = "Collecting something",
) -> subprocess.Popen[str]:
    """It, in the folder, once it has printed these words; `before` stands before its command.

    `mode`: "was there": its environment is; "slow venv": the script is also what makes that.
    """
    (folder / "pip").write_text(pip)
    (folder / "pip").chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", folder)
    process = subprocess.Popen(
        [*before, sys.executable, "-u", "-c", INSTALLING, mode],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    while until not in (line := process.stdout.readline()):
        if not line or "Collecting" in line:
            process.kill()
            raise AssertionError(f"{line}, and not {until}; {process.communicate()[1]}")
    return process
