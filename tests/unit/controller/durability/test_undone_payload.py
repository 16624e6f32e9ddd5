"""When a run goes back, payload of what is undone goes, and payload of what counts again is still there."""

import pytest

from controller.core.events import Tick
from controller.durability.store import Store
from controller.host.stepper import DROPPED_AT_ONCE, Stepper
from protocol.errors import LocalError
from protocol.messages import Delta, PromptsEncoded, Route, Segment
from tests.support.core_run import Run
from tests.unit.controller.durability.test_store import generated, ints


def test_tokens_that_no_attempt_of_the_core_has_are_deleted():
    store = Store(":memory:")
    with store.transaction():
        store.put_row(0, b"{}")
        store.put_frames(PromptsEncoded(((0, 1),), ()), (ints(9),))
        store.put_frames(*generated(Delta(0, 0, 1, 0, 2, 0, "")))
        store.put_frames(*generated(Delta(0, 0, 1, 2, 2, 0, ""), first_token=2))  # undone
        store.put_frames(*generated(Delta(0, 0, 2, 0, 3, 0, ""), first_token=7))  # and so is this
    with store.transaction():
        store.keep_tokens({(0, 0, 1): 2})
        store.put_frames(*generated(Delta(0, 0, 2, 0, 1, 1, ""), first_token=50))
    after = Route(0, 0, 3, 0, 4, (Segment(1, 0, 2), Segment(2, 1, 1)))
    assert store.fetch(Route(0, 0, 3, 0, 4, (Segment(1, 0, 2),)))[1] == ints(0, 1)
    assert store.fetch(after)[1] == ints(0, 1, 50)
    with pytest.raises(LocalError):
        store.fetch(Route(0, 0, 3, 0, 4, (Segment(1, 0, 3),)))


def test_what_is_dropped_is_deleted_when_the_core_has_passed_a_check_since(tmp_path):
    store = Store(tmp_path / "run.db")
    stepper = Stepper(store, Run().core, on_skip=print)
    with store.transaction():
        store.put_row(0, b"{}")
        store.put_row(1, b"{}")
    for group, now in enumerate((1.0, 2.0)):
        stepper.turn(now, [(Tick(), ())])
        stepper.doom([group])
    stepper.passed(1)

    def kept():
        with store.transaction():
            stepper.write_rest()
        return store._payload._groups

    assert kept() == {1}
    stepper.passed(2)
    assert kept() == set()
    store.close()


def test_of_what_is_dropped_at_once_some_is_deleted_at_a_time():
    store = Store(":memory:")
    stepper = Stepper(store, Run().core, on_skip=print)
    groups = range(2 * DROPPED_AT_ONCE + 1)
    with store.transaction():
        for group in groups:
            store.put_row(group, b"{}")
    stepper.turn(1.0, [(Tick(), ())])
    stepper.doom(groups[:3])
    stepper.doom(groups[3:])
    left = []
    for now in (2.0, 3.0, 4.0):
        stepper.turn(now, [(Tick(), ())])
        left.append(sorted(store._payload._groups))
    assert left == [[*groups[DROPPED_AT_ONCE:]], [*groups[2 * DROPPED_AT_ONCE :]], []]
