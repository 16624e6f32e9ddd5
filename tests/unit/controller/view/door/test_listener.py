"""Where the view listens, and who may read its token."""

import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.view.door import listener
from controller.view.door.listener import left_token, listen
from protocol.errors import ConfigError

ROOT = Path(__file__).resolve().parents[5]


def test_another_machine_cannot_reach_it():
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ConfigError, match="ssh -L"):
            listen(host, None)


def test_a_port_that_is_taken_is_passed_over_or_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port}"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]


def test_the_token_is_for_its_owner_alone_and_gone_with_the_view(tmp_path):
    with left_token(tmp_path, "secret", is_own=False) as file:
        assert file == tmp_path / "view.token"
        assert file.read_text() == "secret"
        assert file.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())
    with left_token(tmp_path / "nowhere", "secret", is_own=False) as file:
        assert file is None


def test_a_view_leaves_the_token_of_one_that_goes_on_and_takes_the_place_of_one_that_was_killed(tmp_path):
    words = "from pathlib import Path; from controller.view.door.listener import left_token\n"
    words += (
        f"with left_token(Path({str(tmp_path)!r}), 'a much longer first', is_own=False): print(); input()"
    )
    command = [sys.executable, "-c", words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with left_token(tmp_path, "second", is_own=False) as file:
            assert file == tmp_path / f"view.token.{os.getpid()}"
            assert file.read_text() == "second"
        assert (tmp_path / "view.token").read_text() == "a much longer first"
        first.kill()
    assert (tmp_path / "view.token").exists(), "nobody could take it away"
    with left_token(tmp_path, "third", is_own=False) as file:
        assert file == tmp_path / "view.token"
        assert file.read_text() == "third"
    assert not list(tmp_path.iterdir())


def test_the_run_itself_takes_the_file_from_a_view_which_then_leaves_it_there(tmp_path):
    with ExitStack() as run:
        with left_token(tmp_path, "of a view", is_own=False):
            own = run.enter_context(left_token(tmp_path, "of the run", is_own=True))
            assert own == tmp_path / "view.token"
        assert own.read_text() == "of the run"
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_no_token_and_nobody_from_looking(tmp_path, monkeypatch):
    def full(path, flags):
        os.close(os.open(path, flags, 0o600))
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(listener, "for_owner_only", full)
    monkeypatch.setattr(listener, "_is_at", lambda file, descriptor: True)
    with left_token(tmp_path, "secret", is_own=False) as file:
        assert file is None
    assert not list(tmp_path.iterdir())


def test_on_a_disk_without_locks_a_view_has_a_token_file_and_leaves_that_of_another(tmp_path, monkeypatch):
    def refused(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(listener.fcntl, "flock", refused)
    with left_token(tmp_path, "first", is_own=False) as first:
        assert first == tmp_path / "view.token"
        with left_token(tmp_path, "second", is_own=False) as second:
            assert second == tmp_path / f"view.token.{os.getpid()}"
            assert second.read_text() == "second"
        assert first.read_text() == "first"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("planted", ["link", "pipe", "of another user"])
def test_no_token_is_written_to_what_a_run_of_somebody_else_has_in_its_place(tmp_path, planted):
    run, victim = tmp_path / "run", tmp_path / "thesis.tex"
    run.mkdir()
    victim.write_text("all of it")
    if planted == "link":
        (run / "view.token").symlink_to(victim)
    elif planted == "pipe":
        os.mkfifo(run / "view.token")
    elif os.geteuid() != 0:
        pytest.skip("needs root, to make a file of another user's")
    else:
        (run / "view.token").touch(0o666)
        os.chown(run / "view.token", 65534, 65534)
    with left_token(run, "secret", is_own=False) as file:
        assert file == run / f"view.token.{os.getpid()}"
        assert file.read_text() == "secret"
    assert victim.read_text() == "all of it"
    assert [one.name for one in run.iterdir()] == ["view.token"]
    if planted == "of another user":
        assert not (run / "view.token").read_text()
