"""The fork server and its client where the machine has no room, and where one of them has gone."""

import errno
import json
import os
import signal
import socket
import sys
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from controller.host import forks
from controller.host.forks import Forks, ForkServerLost
from workers.host.fork_server import ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.fixture
def server():
    """One in this process, and the socket of its client."""
    before = signal.getsignal(signal.SIGCHLD)
    with ExitStack() as stack:
        door, ours = (stack.enter_context(one) for one in pair())
        client, theirs = (stack.enter_context(one) for one in pair())
        server = ForkServer(ours, os.getpid())
        stack.callback(signal.signal, signal.SIGCHLD, before)
        stack.callback(signal.set_wakeup_fd, -1)
        socket.send_fds(door, [b"c"], [theirs.fileno()])
        assert server._let_in()
        yield server, client
        for held in server._clients:
            held.close()
        server._selector.close()
        for descriptor in (server._parent, server._wake, server._wakes):
            os.close(descriptor)


def test_a_machine_without_room_for_a_process_is_told_and_costs_the_server_nothing(server, monkeypatch):
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", full)
    server, client = server
    with os.fdopen(os.memfd_create("asked"), "wb") as asked:
        asked.write(json.dumps({"command": ["-c", ""], "environment": {}, "folder": "/"}).encode())
        asked.flush()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            socket.send_fds(client, [b"3"], [asked.fileno()] * 4)
            server._hear(next(iter(server._clients)))
            assert json.loads(client.recv(4096)) == {"number": 3, "refused": errno.EAGAIN}
        assert len(os.listdir("/proc/self/fd")) <= before
    assert list(server._clients.values()) == [{}]


@pytest.fixture
async def client(monkeypatch):
    """A client, and the server's end of its socket."""
    door, theirs = pair()
    process = SimpleNamespace(pid=1)
    server = SimpleNamespace(door=door, process=process, clients=1, last_words=lambda: "no memory")
    monkeypatch.setattr(forks, "_server_of", lambda environment: server)
    with closing(door), closing(theirs):
        client = Forks({})
        _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
        with socket.socket(fileno=descriptors[0]) as served:
            yield client, served
        client.close()


async def test_a_refusal_is_an_error_of_the_machine_and_the_next_one_may_be_forked(client):
    client, served = client
    served.send(json.dumps({"number": 1, "refused": errno.ENOMEM}).encode())
    with pytest.raises(OSError, match="annot allocate memory") as refused:
        await client.start(["-c", ""], {}, output=1, error=2)
    assert refused.value.errno == errno.ENOMEM
    nobody = 2**22 + 1  # above what Linux gives
    served.send(json.dumps({"number": 2, "forked": nobody}).encode())
    assert (await client.start(["-c", ""], {}, output=1, error=2)).pid == nobody


async def test_a_lost_server_is_told_with_its_last_words_for_ever(client):
    client, served = client
    served.close()
    for _ in range(2):
        with pytest.raises(ForkServerLost, match=r"has ended\. Its last words: no memory"):
            await client.start(["-c", ""], {}, output=1, error=2)


async def test_a_server_that_failed_is_told_with_its_exception_first(client, monkeypatch):
    """Of a warning, the console shows the first line alone."""
    client, served = client
    words = (
        'Traceback (most recent call last):\n  File "a.py", line 1\n    boom()\nValueError: \nno such\nlog'
    )
    client._server.last_words = lambda: words
    served.close()
    with pytest.raises(ForkServerLost) as lost:
        await client.start(["-c", ""], {}, output=1, error=2)
    first, _, rest = str(lost.value).partition("\n")
    assert first.endswith("Its last words: ValueError: no such log")
    assert rest == words


def test_the_words_of_a_server_are_there_after_it_was_closed(monkeypatch):
    """Another run in this process closes it, before the one that it served has looked."""
    monkeypatch.setattr(forks, "COMMAND", (sys.executable, "-c", "raise SystemExit('no memory')"))
    server = forks._Server(dict(os.environ))
    server.process.wait()
    server.close()
    assert server.last_words() == "no memory"
