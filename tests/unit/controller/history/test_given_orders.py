"""Orders of operators are found in the journal, and nothing else is taken for one."""

import sqlite3

import msgpack
import pytest

from controller.core.events import Received
from controller.durability.damage import event_checksum
from controller.durability.recording import Recording
from controller.durability.store import Store
from controller.history.given_orders import MARKS, Order, orders
from protocol.ids import PeerId
from protocol.messages import Control, DrainWorker, Holding
from tests.support.shown_run import recorded

ANNA = PeerId("a" * 32)


@pytest.fixture
def run(tmp_path):
    """A finished run behind whose end somebody gave orders, and a worker said something like them."""
    path = recorded(tmp_path / "run")
    last = Recording(path).last
    store = Store(path / "run.db")
    with store.transaction():
        for message in (
            Control("pause", "", "anna@here", "lunch"),
            Holding(("a",), DrainWorker.tag, ((1, 0, 1, 0),)),  # has the bytes of a drain
            DrainWorker("rollout-1", "ben@there", "a new disk"),
            Control("set", "samples.groups=8", "ben@there", ""),
        ):
            store.append_events(99.0, [(Received(ANNA, message), False)])
    store.close()
    return path, last


def test_each_order_has_its_moment_and_who_gave_it(run):
    path, last = run
    assert len([*Recording(path).events_with(*MARKS, after=last)]) == 4
    found = orders(Recording(path), 0)
    assert found == [
        Order(last + 1, 99.0, "pause", "", "anna@here", "lunch"),
        Order(last + 3, 99.0, "drain", "rollout-1", "ben@there", "a new disk"),
        Order(last + 4, 99.0, "set", "samples.groups=8", "ben@there", ""),
    ]
    assert orders(Recording(path), last + 1) == found[1:], "what was found before is not looked for again"


def test_the_drain_of_an_older_release_says_neither_who_nor_why(run):
    path, last = run
    with sqlite3.connect(path / "run.db") as base:
        (event,) = base.execute("SELECT event FROM events WHERE seq = ?", (last + 3,)).fetchone()
        now_said = b"\x93" + b"".join(map(msgpack.packb, ("rollout-1", "ben@there", "a new disk")))
        assert now_said in event
        event = event.replace(now_said, b"\x91" + msgpack.packb("rollout-1"))
        base.execute(
            "UPDATE events SET event = ?, checksum = ? WHERE seq = ?",
            (event, event_checksum(last + 3, 99.0, event, False), last + 3),
        )
    base.close()
    assert orders(Recording(path), last + 1)[0] == Order(last + 3, 99.0, "drain", "rollout-1", "", "")
