"""A port that a test asks for stays its own until somebody it has named it to listens there."""

import socket

import pytest

from tests.support.ports import free_port


def test_a_port_can_be_listened_at_again_and_again_and_is_given_to_nobody_else():
    port = free_port()
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(server.getsockname()) as client,
        ):
            assert client.getpeername()[1] == port
    assert free_port() != port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))  # by who does not set SO_REUSEADDR
