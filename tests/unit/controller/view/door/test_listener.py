"""Where the view listens, and who may read its token."""

import os
import socket

import pytest

from controller.view.door import listener
from controller.view.door.listener import leave_token, listen
from protocol.errors import ConfigError


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


def test_the_token_is_for_its_owner_alone(tmp_path):
    assert leave_token(tmp_path / "view.token", "secret")
    assert (tmp_path / "view.token").read_text() == "secret"
    assert (tmp_path / "view.token").stat().st_mode & 0o777 == 0o600
    assert not leave_token(tmp_path / "nowhere" / "view.token", "secret")


def test_a_full_disk_keeps_no_token_and_nobody_from_looking(tmp_path, monkeypatch):
    def full(path, flags):
        os.close(os.open(path, flags, 0o600))
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(listener, "for_owner_only", full)
    assert not leave_token(tmp_path / "view.token", "secret")
    assert not (tmp_path / "view.token").exists()
