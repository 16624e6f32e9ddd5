"""Who holds a run: the process that wrote its lock file, and no other that has got its number since."""

import fcntl
import os

import pytest

from controller.durability.holder import (
    controller_of,
    is_held,
    lock_of,
    mark,
    open_lock,
    own_place,
    started_at,
    take,
)
from protocol.errors import ConfigError


def test_a_run_directory_is_one_of_which_workers_can_tell(tmp_path):
    for name in ("two\nlines", "half\udcff"):
        with pytest.raises(ConfigError, match="expected a path in UTF-8 without control characters"):
            own_place(tmp_path / name)
    assert own_place(tmp_path / "ünter läufen") == tmp_path / "ünter läufen"


def test_the_process_that_has_marked_the_lock_holds_the_run(tmp_path):
    run = tmp_path / "run"
    assert controller_of(run) is None, "there is no lock"
    lock_of(run).write_text(mark())
    assert controller_of(run) == os.getpid()


def test_words_that_name_no_living_process_name_nobody(tmp_path):
    run = tmp_path / "run"
    for words in (
        "999999999",
        "9" * 40,
        "nobody",
        "",
        "1.5",
        f"{2**22 + 1} 17",
        "0",
        "-1",
        f"-{os.getpgrp()}",
    ):
        lock_of(run).write_text(words)
        assert controller_of(run) is None, words


def test_a_number_that_another_process_has_got_since_names_nobody(tmp_path):
    run = tmp_path / "run"
    lock_of(run).write_text(f"{os.getpid()} {int(started_at(os.getpid())) - 1}")
    assert controller_of(run) is None


def test_a_run_is_held_while_its_lock_is_whatever_pid_stands_there(tmp_path):
    """That of a controller in another container names nobody here, or somebody else."""
    run = tmp_path / "run"
    assert not is_held(run), "there is no lock"
    lock_of(run).write_text("999999999 17")
    assert not is_held(run)
    with lock_of(run).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert controller_of(run) is None
        assert is_held(run)
    assert not is_held(run)
    lock_of(run).write_text(mark())
    assert is_held(run)


def test_a_look_at_a_lock_keeps_nobody_from_taking_it(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with open_lock(run) as lock, open_lock(run) as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda s: fcntl.flock(looking, fcntl.LOCK_UN))
        assert take(lock)
        monkeypatch.setattr("time.sleep", lambda s: None)
        assert not take(looking)


def test_a_process_of_another_user_holds_its_run(tmp_path, monkeypatch):
    def kill(pid, signal):
        raise PermissionError(1, "Operation not permitted")

    run = tmp_path / "run"
    lock_of(run).write_text(f"1 {started_at(1)}")
    monkeypatch.setattr(os, "kill", kill)
    assert controller_of(run) == 1
    lock_of(run).write_text("1 17")
    assert controller_of(run) is None


def test_a_lock_that_nobody_may_read_names_nobody(tmp_path):
    lock_of(tmp_path / "run").mkdir()
    assert controller_of(tmp_path / "run") is None


def test_the_start_of_a_process_is_told_apart_from_that_of_another():
    assert started_at(os.getpid()).isdigit()
    assert started_at(1) != started_at(os.getpid())
    assert started_at(2**22 + 1) == ""
