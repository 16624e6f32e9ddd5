"""Python's garbage collector while a run goes on.

Invariant: what holds while `rare_collections` is open is put back when it is closed.
Measured: with its usual thresholds it takes 5 to 10 % of a busy controller, and a full collection stops the
loop for as long as the run has trajectories to look at; hardly anything that a run leaves behind is a cycle.
Where a run is taken up, looking at what is just made of its journal took a third of the time.
Python looks at the youngest objects when there are many more of all objects than before. A run in balance has
as many new ones as old ones that go, so young ones pile up: at 1,024 instances with 64 trajectories each, a
look at them took 47 to 68 ms in the midst of a step, and one at the middle generation 320 to 400 ms. So the
loop looks at both itself, after so many events and commands: about 10 ms then. What lives is old after that.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from controller.durability.image.freezer import without_collecting

YOUNG = 5_000  # objects more than there were before the youngest are looked at: 50,000 took 47 ms of the loop
ROUNDS = 10, 50_000  # of these until the next older ones are
HANDLED = 250  # events and commands until the loop looks at what they have left
MIDDLE = 1  # the generation between the youngest and the oldest


class Collector:
    """What a run decides about collections while they are rare."""

    def __init__(self) -> None:
        self._handled = 0

    def leave_what_is_there(self) -> None:
        """Never look at what there is now: a run that is taken up, say."""
        gc.freeze()

    def after(self, handled: int) -> None:
        """Look at what is young, if so many events and commands make it enough by now; between two turns."""
        self._handled += handled
        if self._handled >= HANDLED:
            self._handled = 0
            gc.collect(MIDDLE)


@contextmanager
def rare_collections() -> Iterator[Collector]:
    """Look neither at what is there now, nor often at what comes."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *ROUNDS)
    try:
        yield Collector()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def never_collected() -> Iterator[None]:
    """Exempt what is made inside, such as the core of a resumed run, from every later collection."""
    with without_collecting():
        yield
        gc.freeze()
