"""Images of one core after another: what never changes is packed and made once, and shared by nobody else."""

import gc

import pytest

from controller.config.strategies import load_strategies
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import Thawer, thaw
from protocol.errors import RunError
from tests.simulation.test_simulated_runs import config
from tests.unit.controller.durability.image.test_freezer import some_core

STRATEGIES = load_strategies(config())


def batches_of(core):
    found = core.state.batches
    assert found
    return found


def test_cores_of_two_images_share_batches_and_nothing_that_changes():
    core, thawer = some_core(), Thawer(STRATEGIES)
    first = thawer.thaw(Freezer().freeze(core))
    core.state.now += 1.0
    second = thawer.thaw(Freezer().freeze(core))
    assert all(batches_of(second)[key] is batch for key, batch in batches_of(first).items())
    assert second.state.registry is not first.state.registry
    image = Freezer().freeze(first)
    second.state.groups.clear()
    second.state.batches.clear()
    second.state.accounts.spent_s["training"] = 1e9
    assert Freezer().freeze(first) == image


def test_batches_are_known_again_in_an_image_whose_classes_are_met_in_another_order():
    core, thawer = some_core(), Thawer(STRATEGIES)
    found = thawer.thaw(Freezer().freeze(core))
    parts = Freezer().freeze_in_parts(core).parts
    turned = dict(reversed(vars(core).items()))
    vars(core).clear()
    vars(core).update(turned)
    again = thawer.thaw(Freezer().freeze(core))
    assert all(batches_of(again)[key] is batch for key, batch in batches_of(found).items())
    assert set(Freezer().freeze_in_parts(core).parts) == set(parts)


def test_a_freezer_packs_what_was_thawed_as_it_came():
    """Its bytes are kept as they are: altered ones would come out again."""
    thawer, freezer = Thawer(STRATEGIES), Freezer()
    core = thawer.thaw(Freezer().freeze(some_core()))
    thawer.alone = {packed + b"as it came": batch for packed, batch in thawer.alone.items()}
    freezer.learn(thawer)
    assert set(freezer.freeze_in_parts(core).parts) == set(thawer.alone)
    assert thawer.alone


def test_a_freezer_holds_what_it_has_packed_and_nothing_that_has_left():
    """By id: an object that is gone could give its id to another one."""
    core, freezer = some_core(), Freezer()
    freezer.freeze_in_parts(core)
    batches = list(batches_of(core).values())
    assert [found for found, _ in freezer._alone.values()] == batches
    core.state.batches.popitem()
    assert freezer.freeze_in_parts(core) == Freezer().freeze_in_parts(core)
    core.state.batches.clear()
    freezer.freeze(core)
    assert freezer._alone == {}


def test_what_the_last_image_did_not_have_is_forgotten():
    core, thawer = some_core(), Thawer(STRATEGIES)
    thawer.thaw(Freezer().freeze(core))
    assert len(thawer.alone) == len(set(batches_of(core).values()))
    core.state.batches.clear()
    thawer.thaw(Freezer().freeze(core))
    assert thawer.alone == {}


def test_garbage_is_collected_again_after_a_damaged_image():
    image = Freezer().freeze(some_core())
    with pytest.raises(RunError):
        thaw(image[:-3], STRATEGIES)
    assert gc.isenabled()


def test_an_image_in_parts_is_the_same_core_and_parts_of_equal_batches_are_equal():
    core, freezer, thawer = some_core(), Freezer(), Thawer(STRATEGIES)
    whole = Freezer().freeze(core)
    first = freezer.freeze_in_parts(core)
    assert len(first.parts) == len(set(batches_of(core).values()))
    assert len(first.skeleton) + sum(map(len, first.parts)) <= len(whole)
    assert Freezer().freeze(thawer.thaw(first)) == whole
    core.state.now += 1.0
    assert freezer.freeze_in_parts(core).parts == first.parts == Freezer().freeze_in_parts(core).parts
    assert Freezer().freeze(core) == freezer.freeze(core)


def test_an_image_that_lacks_a_part_is_refused():
    image = Freezer().freeze_in_parts(some_core())
    with pytest.raises(RunError, match="cannot be read"):
        Thawer(STRATEGIES).thaw(image._replace(parts=image.parts[:-1]))
