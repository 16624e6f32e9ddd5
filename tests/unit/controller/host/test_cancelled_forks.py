"""Requests for a fork whose makers are gone before the answer, and a server without room for their files."""

import asyncio
import errno
import json
import os
import socket

import pytest

from controller.host import forks
from controller.host.forks import Forks
from tests.unit.controller.host.test_fork_refusals import (
    client,
    pytestmark,  # noqa: F401  it holds here, too
    server,
)
from workers.host import fork_server

__all__ = ["client", "server"]
NOBODY = 2**22 + 1  # a pid above what Linux gives


async def ask(client: Forks, served: socket.socket) -> tuple[asyncio.Task, int]:
    """A request on its way, and its number."""
    asked = asyncio.create_task(client.start(["-c", ""], {}, output=1, error=2))
    await asyncio.sleep(0)
    said, descriptors, _, _ = socket.recv_fds(served, 64, 4)
    for descriptor in descriptors:
        os.close(descriptor)
    return asked, int(said)


async def test_the_process_of_a_cancelled_request_is_killed_and_never_given_to_the_next(client, monkeypatch):
    client, served = client
    killed = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    first, number = await ask(client, served)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second, next_number = await ask(client, served)
    served.send(json.dumps({"number": number, "forked": NOBODY}).encode())
    served.send(json.dumps({"number": next_number, "forked": NOBODY + 1}).encode())
    assert (await second).pid == NOBODY + 1
    assert killed == [NOBODY]


async def test_a_refusal_of_a_cancelled_request_does_not_refuse_the_next(client):
    client, served = client
    first, number = await ask(client, served)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second, next_number = await ask(client, served)
    served.send(json.dumps({"number": number, "refused": errno.ENOMEM}).encode())
    served.send(json.dumps({"number": next_number, "ended": NOBODY, "code": 3}).encode())
    assert await (await second).wait() == 3


def test_a_request_whose_files_find_no_room_is_refused_and_costs_the_server_nothing(server):
    server, client = server
    with open(os.devnull, "rb") as only:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(client, [b"7"], [only.fileno()])  # as if the kernel had dropped the other three
        server._hear(next(iter(server._clients)))
        assert json.loads(client.recv(4096)) == {"number": 7, "refused": errno.EMFILE}
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_word_of_the_command_that_is_an_option_of_python_stays_its_own(monkeypatch, tmp_path):
    heard = {}
    monkeypatch.setattr(fork_server.runpy, "run_module", lambda name, **_: heard.update(name=name))
    monkeypatch.setattr(fork_server.importlib, "import_module", lambda name: closing_module())
    monkeypatch.setattr(fork_server, "setproctitle", lambda title: None)
    monkeypatch.setattr(fork_server.sys, "argv", [])
    monkeypatch.setattr(fork_server.sys, "path", [*fork_server.sys.path])
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.chdir(tmp_path)
    asked = {"command": ["-P", "-m", "there", "--name", "-P"], "environment": {}, "folder": str(tmp_path)}
    fork_server.run(asked)
    assert (heard["name"], fork_server.sys.argv) == ("there", ["there", "--name", "-P"])


def closing_module():
    class Renewal:
        @staticmethod
        def renew() -> None: ...

    return Renewal


async def test_a_client_without_room_for_its_socket_is_none_of_the_server(monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    servers = []
    monkeypatch.setattr(forks, "_server_of", servers.append)
    monkeypatch.setattr(forks.socket, "socketpair", full)
    with pytest.raises(OSError, match="Too many open files"):
        Forks({})
    assert not servers


def test_a_client_that_is_through_is_dismissed_without_a_look_at_the_parent(server, monkeypatch):
    server, client = server
    monkeypatch.setattr(server, "_is_parent_ending", lambda: pytest.fail("it looked"))
    client.send(forks.THROUGH)
    assert server._hear(next(iter(server._clients)))
    assert not server._clients
