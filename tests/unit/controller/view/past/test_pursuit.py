"""What a page would wait for is read before it asks, and only for pages that go on asking."""

from threading import Event, Thread

import pytest

from controller.view.past import pursuit as pursuits
from controller.view.past.pursuit import LOOKED_S, PAUSE_S, SLICE_S, WORTH_S, YIELD_S, Pursuit
from controller.view.past.replayed_core import StillReading
from protocol.errors import RunError

LIMIT_S = 60.0  # ends what hangs


class Machine:
    """Time that goes by where somebody reads or waits."""

    def __init__(self, *, late=0, read_s=0.0, trouble=None):
        """`late`: readings that come to no end; `read_s`: what each of the others takes."""
        self.now, self.waited, self.read, self.on_wait = 0.0, [], 0, lambda: None
        self._late, self._read_s, self._trouble = late, read_s, trouble
        self.pursuit = Pursuit(self._read_on, clock=lambda: self.now, wait=self._wait)

    def _wait(self, seconds):
        self.waited.append(seconds)
        self.now += seconds
        self.on_wait()

    def _read_on(self, is_late):
        self.read += 1
        if self._trouble is not None:
            raise self._trouble
        while self.read <= self._late:
            self.now += SLICE_S / 3
            if is_late():
                raise StillReading(1, 2)
        self.now += self._read_s

    def look(self, read_s, *, times=2, apart_s=0.8):
        for _ in range(times):
            self.now += apart_s
            self.pursuit.looked(read_s)
        self.pursuit.join()


@pytest.mark.parametrize(
    ("read_s", "times", "apart_s"),
    [(WORTH_S / 2, 5, 0.1), (1.0, 1, 0.8), (1.0, 5, LOOKED_S + 1)],
    ids=["a small run", "one look", "looks now and then"],
)
def test_nothing_is_read_ahead_where_it_is_not_worth_it(read_s, times, apart_s):
    machine = Machine()
    machine.look(read_s, times=times, apart_s=apart_s)
    assert machine.read == 0


def test_it_reads_on_for_who_looks_again_and_ends_when_nobody_does():
    machine = Machine()
    machine.look(WORTH_S)
    assert machine.read == len(machine.waited) >= LOOKED_S / PAUSE_S - 1
    assert set(machine.waited) == {PAUSE_S}
    assert machine.now == pytest.approx(1.6 + LOOKED_S, abs=2 * PAUSE_S)


def test_reading_that_takes_long_is_cut_into_slices_between_which_others_may():
    machine = Machine(late=4)
    machine.look(WORTH_S)
    assert machine.waited[:6] == [PAUSE_S, *[YIELD_S] * 4, PAUSE_S]


@pytest.mark.parametrize(("read_s", "goes_on"), [(WORTH_S / 10, True), (WORTH_S / 100, False)])
def test_what_it_read_itself_counts_for_the_next_look(read_s, goes_on):
    machine = Machine(read_s=read_s)

    def look_once_more():
        if len(machine.waited) == 20:
            machine.pursuit.looked(0.0)  # for which nothing was left to read

    machine.on_wait = look_once_more
    machine.look(WORTH_S)
    assert (machine.now - 1.6 > LOOKED_S + 19 * PAUSE_S) == goes_on


def test_a_damaged_journal_ends_it_and_is_left_to_who_looks():
    machine = Machine(trouble=RunError("damaged"))
    machine.look(WORTH_S)
    assert machine.read == 1


def test_a_core_that_takes_long_to_take_up_keeps_nobody_waiting():
    is_taken_up, machine = Event(), Machine()
    pursuit = Pursuit(lambda is_late: is_taken_up.wait(LIMIT_S), clock=lambda: machine.now)
    assert not pursuit.has_begun(0.0)
    is_taken_up.set()
    assert pursuit.has_begun(LIMIT_S)


def test_one_that_cannot_be_taken_up_is_left_to_who_looks():
    machine = Machine(trouble=RunError("damaged"))
    assert machine.pursuit.has_begun(LIMIT_S)
    assert machine.pursuit.has_begun(LIMIT_S)
    assert machine.read == 1


@pytest.fixture
def starting(monkeypatch):
    """What is done once, between the making of a thread and its start."""
    found = []

    class Slow(Thread):
        def start(self):
            while found:
                found.pop()()
            super().start()

    monkeypatch.setattr(pursuits, "Thread", Slow)
    return found


def test_who_looks_while_another_one_begins_waits_as_long_as_it_has_patience(starting):
    machine, answers = Machine(), []
    starting.append(lambda: answers.append(machine.pursuit.has_begun(0.0)))
    assert machine.pursuit.has_begun(LIMIT_S)
    assert answers == [False]
    assert machine.read == 1


def test_a_thread_that_could_not_be_started_is_started_for_who_looks_next(starting):
    def fail():
        raise RuntimeError("can't start new thread")

    machine = Machine()
    starting.append(fail)
    with pytest.raises(RuntimeError, match="new thread"):
        machine.pursuit.has_begun(LIMIT_S)
    assert machine.pursuit.has_begun(LIMIT_S)
    assert machine.read == 1
