"""Schedules Python's garbage collector during a run.

Invariant: the thresholds that `rare_collections` changes are restored when the last run of the process ends.
Measured: with Python's default thresholds, collections take 5 to 10 % of a busy controller, and a full one
stops the loop in proportion to the trajectories in flight, though a run hardly leaves any cycles. While a run
is resumed, collections took a third of the time.
Python collects the youngest generation when the number of objects has grown. A run in balance frees as many
objects as it makes, so young ones pile up: at 1,024 instances with 64 trajectories each, a young collection
took 47 to 68 ms in the middle of a step, and one of the middle generation 320 to 400 ms. So the loop collects
both itself after HANDLED events and commands, which takes about 10 ms; survivors become old.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from controller.durability.image.freezer import without_collecting

YOUNG = 5_000  # new objects until Python collects the youngest: 50,000 took 47 ms of the loop
ROUNDS = 10, 50_000  # such collections until the next older generation is collected
HANDLED = 250  # events and commands until the loop collects
MIDDLE = 1  # the generation between the youngest and the oldest
_before: list[tuple[int, int, int]] = []  # thresholds at the start of each live run; the first: of no run
_change = Lock()  # runs of one process may have threads of their own


class Collector:
    """Collections at the moments that a run chooses."""

    def __init__(self) -> None:
        self._handled = 0

    def leave_what_is_there(self) -> None:
        """Exempt all present objects from collection, such as a resumed run."""
        gc.freeze()

    def after(self, handled: int) -> None:
        """Collect young objects if enough events and commands were handled; call it between two turns."""
        self._handled += handled
        if self._handled >= HANDLED:
            self._handled = 0
            gc.collect(MIDDLE)


@contextmanager
def rare_collections() -> Iterator[Collector]:
    """Exempt present objects from collection, and collect new ones rarely."""
    with _change:
        _before.append(gc.get_threshold())
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, *ROUNDS)
    try:
        yield Collector()
    finally:
        with _change:
            before = _before.pop()
            if not _before:  # the last run: these are the thresholds from before the first
                gc.set_threshold(*before)
                gc.unfreeze()


@contextmanager
def never_collected() -> Iterator[None]:
    """Exempt objects made inside, such as the core of a resumed run, from every later collection."""
    with without_collecting():
        yield
        gc.freeze()
