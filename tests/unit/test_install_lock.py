"""The lock on an environment: who has it is told, none can be had everywhere, and nobody waits for ever."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

import install
from install import lock


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return tmp_path / "environment"


def test_the_file_has_the_process_that_holds_it_and_nobody_afterwards(environment):
    file = environment.parent / "environment.lock"
    with lock.locked(environment, print, None):
        assert file.read_text() == str(os.getpid())
    assert file.read_text() == ""
    with lock.locked(environment, print, None):
        assert file.read_text() == str(os.getpid())


def test_where_no_file_can_be_made_it_goes_on_and_says_so(environment):
    (environment.parent / "environment.lock").mkdir()
    said = []
    with lock.locked(environment, said.append, None):
        said.append("goes on")
    assert "environment.lock cannot be locked ([Errno 21]" in said[0]
    assert said[1] == "goes on"


def test_where_the_disk_has_no_locks_it_goes_on_and_says_so(environment, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = []
    with lock.locked(environment, said.append, None):
        said.append("goes on")
    assert "cannot be locked ([Errno 37] No locks available)" in said[0]
    assert said[1] == "goes on"


def test_nobody_waits_for_longer_than_the_limit(environment, capsys):
    with lock.locked(environment, print, None), pytest.raises(install.InstallFailed) as failed:
        install.install(environment, [], limit_s=0.0)
    assert f"another launch.py (pid {os.getpid()}) was at it for 0 s" in str(failed.value)
    assert f"another launch.py (pid {os.getpid()}) installs into {environment}" in capsys.readouterr().out
    assert not environment.exists()


def test_who_waits_does_not_say_that_it_installs(environment, capsys, monkeypatch):
    others = iter([False, True])
    monkeypatch.setattr(install.lock, "_is_got", lambda descriptor: next(others))
    monkeypatch.setattr(install, "is_complete", lambda *_: True)
    install.install(environment, [])
    said = capsys.readouterr().out.splitlines()
    assert "another launch.py installs into" in said[0]
    assert said[1].endswith("what is needed is there now")
    assert len(said) == 2
