"""Python's garbage collector while a run goes on: rarer, and afterwards as before."""

import gc
import weakref

from controller.host.collector import HANDLED, YOUNG, never_collected, rare_collections


def test_collections_are_rare_inside_and_as_before_outside():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] == YOUNG
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_of_runs_side_by_side_the_last_restores_what_was_there_before_the_first():
    before = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == YOUNG
    assert gc.get_freeze_count() > 0
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_is_there_later_can_be_left_too():
    with rare_collections() as collector:
        before = gc.get_freeze_count()
        kept = [[] for _ in range(1000)]
        assert gc.get_freeze_count() == before
        collector.leave_what_is_there()
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


def test_what_lives_is_old_after_so_many_events_and_is_not_looked_at_again():
    with rare_collections() as collector:
        kept = [[] for _ in range(YOUNG // 2)]
        collector.after(HANDLED - 1)
        assert is_young(kept[0])
        collector.after(1)
        assert not is_young(kept[0])
        assert len(gc.get_objects(generation=1)) < len(kept)
        again = [[] for _ in range(YOUNG // 2)]
        collector.after(HANDLED - 1)
        assert is_young(again[0])


def test_a_cycle_that_a_turn_leaves_is_found():
    class Node:
        other = None

    with rare_collections() as collector:
        node = Node()
        node.other = node
        gone = weakref.ref(node)
        del node
        assert gone() is not None
        collector.after(HANDLED)
        assert gone() is None


def is_young(one):
    return any(one is other for other in gc.get_objects(generation=0))
