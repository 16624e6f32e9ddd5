"""What is not needed any more goes a few at a time."""

import weakref

from controller.core.state.batches.disposal import LEAST, SHARE, Disposal


class Thing:
    pass


def test_a_few_are_freed_at_each_event_and_all_in_the_end():
    things = [Thing() for _ in range(10 * LEAST)]
    alive = [weakref.ref(thing) for thing in things]
    disposal = Disposal()
    disposal.add(things)
    del things
    disposal.go_on()
    assert [one() is None for one in alive] == [True] * LEAST + [False] * 9 * LEAST
    for _ in range(9):
        disposal.go_on()
    assert not len(disposal)
    disposal.go_on()


def test_of_many_more_are_freed_so_that_they_never_pile_up():
    disposal = Disposal()
    for _ in range(100):
        disposal.add(range(100 * SHARE))
        for _ in range(SHARE):
            disposal.go_on()
    assert len(disposal) < 200 * SHARE


def test_all_can_be_freed_at_once():
    disposal = Disposal()
    disposal.add(range(100))
    disposal.clear()
    assert not len(disposal)
