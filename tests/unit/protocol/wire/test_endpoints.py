"""What may be bound, and what is in the way of it."""

import socket

import pytest

from protocol.errors import ConfigError
from protocol.wire.endpoints import check_endpoint, check_unix_path, has_ipv6_alone, unknown_host


@pytest.mark.parametrize("check", [lambda path: check_endpoint(f"ipc://{path}"), check_unix_path])
def test_a_file_at_the_path_of_a_socket_is_no_dead_socket(tmp_path, check):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for path in (notes, tmp_path):
        with pytest.raises(ConfigError, match="exists and is no socket"):
            check(path)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("host", ["node..1", 64 * "n" + ".example"])
async def test_a_host_that_has_no_name_of_one_is_told_like_one_that_nobody_knows(host):
    assert not await has_ipv6_alone(f"tcp://{host}:29500")
    said = await unknown_host(f"tcp://{host}:29500")
    assert said == f"This machine finds no address for the host {host}: it is not a valid host name."


def test_the_socket_of_a_controller_that_was_killed_is_cleared_away(tmp_path):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "left"))
    check_endpoint(f"ipc://{tmp_path}/left")
    assert not (tmp_path / "left").exists()
