"""Python's garbage collector while a run goes on.

Invariant: what holds while `rare_collections` is open is put back when it is closed.
Measured: with its usual thresholds it takes 5 to 10 % of a busy controller, and a full collection stops the
loop for as long as the run has trajectories to look at; hardly anything that a run leaves behind is a cycle.
Where a run is taken up, looking at what is just made of its journal took a third of the time.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller.durability.image.freezer import without_collecting

YOUNG = 5_000  # objects more than there were before the youngest are looked at: 50,000 took 47 ms of the loop
ROUNDS = 500, 100  # of these until the next older ones are


@contextmanager
def rare_collections() -> Iterator[Callable[[], None]]:
    """Look neither at what is there now, nor often at what comes.

    Gives a function to call once a run is there: from then on nothing of it is looked at, either.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *ROUNDS)
    try:
        yield gc.freeze
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def never_collected() -> Iterator[None]:
    """Exempt what is made inside, such as the core of a resumed run, from every later collection."""
    with without_collecting():
        yield
        gc.freeze()
