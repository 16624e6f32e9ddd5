"""Two starts of launch.py in one folder: one installs, the other waits for its end."""

import os
import signal
import subprocess

from tests.support.installing import GATED_PIP, started

LIMIT_S = 300
STOPPED = 130
WAITS = "another launch.py (pid {pid}) installs into {folder}/.venv; waiting for its end"


def test_what_the_first_has_installed_is_there_for_the_second(tmp_path):
    os.mkfifo(tmp_path / "gate")
    first = started(tmp_path, GATED_PIP)
    second = started(tmp_path, GATED_PIP, until=WAITS.format(pid=first.pid, folder=tmp_path))
    (tmp_path / "gate").write_text("on\n")
    for process in (first, second):
        assert_goes_on(process)
    assert (tmp_path / "installed").read_text() == "once\n"


def test_what_the_first_leaves_undone_the_second_does(tmp_path):
    os.mkfifo(tmp_path / "gate")
    first = started(tmp_path, GATED_PIP)
    second = started(tmp_path, GATED_PIP, until=WAITS.format(pid=first.pid, folder=tmp_path))
    first.send_signal(signal.SIGINT)
    assert f"{tmp_path}/.venv is removed." in first.communicate(timeout=LIMIT_S)[1]
    assert first.returncode == STOPPED
    (tmp_path / "gate").write_text("on\n")
    assert_goes_on(second)
    assert (tmp_path / "installed").read_text() == "once\n" * 2


def test_who_waits_can_be_stopped_and_takes_nothing_from_the_first(tmp_path):
    os.mkfifo(tmp_path / "gate")
    first = started(tmp_path, GATED_PIP)
    second = started(tmp_path, GATED_PIP, until=WAITS.format(pid=first.pid, folder=tmp_path))
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=LIMIT_S)
    assert second.returncode == STOPPED
    third = started(tmp_path, GATED_PIP, until=WAITS.format(pid=first.pid, folder=tmp_path))
    (tmp_path / "gate").write_text("on\n")
    for process in (first, third):
        assert_goes_on(process)


def assert_goes_on(process: subprocess.Popen[str]) -> None:
    told, words = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, words
    assert told.endswith("launch.py status\n")
