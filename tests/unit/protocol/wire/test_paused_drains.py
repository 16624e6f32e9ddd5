"""A server that hears much drains its socket from time to time; one that hears little, at once."""

import pytest

from protocol.wire.server import Server
from protocol.wire.sockets import MANY, MOST_PAUSES, PAUSE_S


class Loop:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.now, self.asked = 100.0, list[tuple[object, ...]]()

    def time(self) -> float:
        return self.now

    def call_soon(self, call) -> None:
        self.asked.append(("soon", call.__name__))

    def call_at(self, due: float, call) -> None:
        self.asked.append((due, call.__name__))

    def add_reader(self, descriptor: int, call) -> None:
        self.asked.append(("watch", call.__name__))

    def remove_reader(self, descriptor: int) -> None:
        self.asked.append(("ignore", ""))


@pytest.fixture
def server(tmp_path):
    made = Server(f"ipc://{tmp_path}/s", on_message=lambda *_: None, on_fault=lambda *_: None)
    made._loop = Loop()
    yield made
    made._loop = None
    made.close()


def test_few_messages_are_read_at_once(server):
    server._heard, server._drained_at = MANY - 1, server._loop.now
    server.kick()
    server.kick()
    assert server._loop.asked == [("soon", "_drain")]


def test_many_messages_wait_for_the_end_of_the_pause_and_wake_nobody(server):
    server._heard, server._drained_at = MANY, server._loop.now - PAUSE_S / 2
    server.kick()
    server.kick()
    due = server._drained_at + PAUSE_S
    assert server._loop.asked == [("ignore", ""), (due, "_drain_after_pause")]
    server._loop.now = due
    server._drain_after_pause()
    assert ("watch", "kick") in server._loop.asked
    assert not server._is_scheduled


@pytest.mark.parametrize(("times", "pauses"), [(1.5, 1.5), (1000.0, MOST_PAUSES)])
def test_the_more_come_the_longer_is_the_pause_and_it_stays_short(server, times, pauses):
    server._heard, server._drained_at = times * MANY, server._loop.now
    server.kick()
    assert server._loop.asked[-1] == (server._loop.now + pauses * PAUSE_S, "_drain_after_pause")


def test_after_the_pause_they_are_read_at_once(server):
    server._heard, server._drained_at = 10 * MANY, server._loop.now - 1.1 * MOST_PAUSES * PAUSE_S
    server.kick()
    assert server._loop.asked == [("soon", "_drain")]
