"""Addresses that a server is bound to, or refused in words."""

import socket
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.wire.server import Server


def silent_server(endpoint: str) -> Server:
    return Server(endpoint, on_message=lambda *_: None, on_fault=lambda *_: None)


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://0.0.0.0:5555", "other hosts can reach"),
        ("tcp://*:5555", "other hosts can reach"),
        ("tcp://10.0.0.1:5555", "other hosts can reach"),
        ("udp://127.0.0.1:5555", "expected `ipc://PATH`"),
        ("127.0.0.1:5555", "expected `ipc://PATH`"),
        ("ipc:///no/such/folder/socket", "does not exist"),
        (f"ipc:///{'x' * 120}", "the system allows 107"),
        ("ipc://@name", "every user of this machine could attach"),
    ],
)
def test_an_address_that_must_not_be_bound_is_refused_in_words(endpoint: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        silent_server(endpoint).close()


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        endpoint = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"Binding {endpoint} failed: Address already in use"):
            silent_server(endpoint)


def test_a_live_socket_is_not_taken_over_and_a_dead_one_is(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/socket"
    first = silent_server(endpoint)
    with pytest.raises(ConfigError, match="Another live process listens"):
        silent_server(endpoint)
    first.close()
    assert list(tmp_path.iterdir()) == []
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/socket")  # closed without unlink, as after SIGKILL
    silent_server(endpoint).close()
