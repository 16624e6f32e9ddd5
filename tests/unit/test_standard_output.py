"""A command whose output cannot be written ends in words, with exit code 1; closed streams are opened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FULL = Path("/dev/full")
BUFFERINGS = ["", "1"]
OTHER_FILE = """
import errno, sys
from install.standard_output import told_if_refused
with told_if_refused():
    raise OSError(errno.ENOSPC, "it says no")
"""
OF_A_RUN = """
import contextlib, sys
from install.standard_output import drop_unwritten, told_if_refused
with told_if_refused():
    with contextlib.suppress(OSError):
        print("step 1", flush=True)
    drop_unwritten(sys.stdout)
sys.exit(7)
"""

CLOSED = """
import socket, subprocess, sys
from install.standard_output import open_closed_streams
open_closed_streams()
print("dropped", flush=True)
place = socket.socket().fileno()
child = subprocess.run([sys.executable, "-c", "import os; [os.fstat(number) for number in (0, 1, 2)]"])
sys.exit(place if place < 3 else 10 + child.returncode)
"""


def ended(*command: str, stdout, buffering: str = ""):
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env=os.environ | {"STALEFLOW_NO_INSTALL": "1", "PYTHONUNBUFFERED": buffering},
        stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("buffering", BUFFERINGS)
@pytest.mark.parametrize("arguments", [("check", "examples/quickstart.yaml"), ("--help",), ("--version",)])
def test_a_full_disk_for_the_output_is_said_in_a_line(arguments, buffering):
    with FULL.open("w") as full:
        done = ended("launch.py", *arguments, stdout=full, buffering=buffering)
    assert done.returncode == 1
    assert done.stderr.startswith("What this command prints cannot be written: No space left on device.")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_is_gone_is_told_nothing():
    read, write = os.pipe()
    os.close(read)
    try:
        done = ended("launch.py", "--version", stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_of_another_file_is_none_of_the_output():
    done = ended("-c", OTHER_FILE, stdout=subprocess.DEVNULL)
    assert done.stderr.endswith("OSError: [Errno 28] it says no\n")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("buffering", BUFFERINGS)
def test_a_run_ends_as_it_ended_though_nothing_that_it_said_was_written(buffering):
    with FULL.open("w") as full:
        done = ended("-c", OF_A_RUN, stdout=full, buffering=buffering)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_socket_takes_the_place_of_a_closed_stream(closed):
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", CLOSED], cwd=ROOT)
    assert done.returncode == 10


def test_a_command_may_have_no_input(tmp_path):
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "launch.py", "init", tmp_path / "new"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"STALEFLOW_NO_INSTALL": "1"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_working_directory_that_is_gone_is_told_of_in_a_sentence(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone} && exec {sys.executable} {ROOT / 'launch.py'} doctor"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may be `.`
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=gone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        "The working directory cannot be used: No such file or directory. Change into another, and start "
        "again.\n"
    )
