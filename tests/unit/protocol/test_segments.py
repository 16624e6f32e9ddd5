"""Folders in shared memory: named alike by everybody, kept while held, swept afterwards."""

import signal
import subprocess
import sys

from protocol import segments
from protocol.segments import hold, remove, segment_directory, sweep

HOLDER = """
import sys, pathlib
from protocol.segments import hold
lock = hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_has_one_folder_on_each_host(tmp_path):
    names = {segment_directory(run, host=host, base="b") for run in "xy" for host in ("one", "two")}
    assert len(names) == 4
    assert segment_directory("x", host="one").parent.name == "shm"


def test_only_folders_that_nobody_holds_are_swept(tmp_path):
    base = str(tmp_path)
    held, kept, left = (segment_directory(run, host="h", base=base) for run in "abc")
    lock = hold(held)
    for directory in (kept, left):
        hold(directory).close()
    sweep(base, keep=kept)
    assert [directory.exists() for directory in (held, kept, left)] == [True, True, False]
    lock.close()
    remove(held)
    assert not held.exists()
    remove(held)


def test_what_a_run_left_in_shared_memory_goes_when_it_goes_on_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(segments, "SHARED_MEMORY", tmp_path / "shm")
    before, now = (segment_directory("run", host="h", base=base) for base in ("auto", str(tmp_path / "disk")))
    for directory in (before, now):
        hold(directory).close()
    sweep(str(tmp_path / "disk"), keep=now)
    assert [directory.exists() for directory in (before, now)] == [False, True]


def test_on_a_system_without_shared_memory_the_folders_are_in_tmp(tmp_path, monkeypatch):
    """As on macOS, where nobody can make a folder in /dev."""
    monkeypatch.setattr(segments, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(segments, "ON_DISK", tmp_path / "tmp")
    left = segment_directory("run", host="h")
    assert left.parent == tmp_path / "tmp"
    hold(left).close()
    sweep()
    assert not left.exists()


def test_a_killed_process_holds_nothing(tmp_path):
    directory = segment_directory("run", host="h", base=str(tmp_path))
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        sweep(str(tmp_path))
        assert directory.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    sweep(str(tmp_path))
    assert not directory.exists()
