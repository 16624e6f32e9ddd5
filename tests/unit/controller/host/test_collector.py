"""Python's garbage collector while a run goes on: rarer, and afterwards as before."""

import gc

from controller.host.collector import YOUNG, never_collected, rare_collections


def test_collections_are_rare_inside_and_as_before_outside():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] == YOUNG
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_is_there_later_can_be_left_too():
    with rare_collections() as leave_what_is_there:
        before = gc.get_freeze_count()
        kept = [[] for _ in range(1000)]
        assert gc.get_freeze_count() == before
        leave_what_is_there()
        assert gc.get_freeze_count() >= before + len(kept)


def test_what_a_run_is_taken_up_with_is_never_looked_at():
    with rare_collections():
        before = gc.get_freeze_count()
        with never_collected():
            kept = [[] for _ in range(100 * YOUNG)]
            assert gc.get_count()[0] >= len(kept)
        assert gc.get_freeze_count() >= before + len(kept)
        assert gc.get_count()[0] < YOUNG
        assert gc.isenabled()
