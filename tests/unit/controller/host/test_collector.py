"""Python's garbage collector while a run goes on: rarer, and afterwards as before."""

import gc

from controller.host.collector import YOUNG, rare_collections


def test_collections_are_rare_inside_and_as_before_outside():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] == YOUNG
        assert gc.get_freeze_count() > frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
