"""What is no image of this release is refused in words, and none of it runs."""

import random
from itertools import pairwise

import msgpack
import pytest

from controller.config.strategies import load_strategies
from controller.durability.image.classes import FIRST_SHAPE
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from protocol.errors import RunError
from tests.simulation.test_simulated_runs import config
from tests.unit.controller.durability.image.test_freezer import some_core


def test_an_image_with_other_classes_is_refused():
    shapes, root = msgpack.unpackb(Freezer().freeze(some_core()), strict_map_key=False)
    for before, after in ((shapes[0][0], "os.system"), (shapes[0][0], "controller.core.state.groups.Group")):
        altered = [[after if name == before else name, names] for name, names in shapes]
        with pytest.raises(RunError, match="cannot be read"):
            thaw(msgpack.packb([altered, root]), load_strategies(config()))


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_image_raises_and_nothing_else(seed):
    image, dice = Freezer().freeze(some_core()), random.Random(seed)
    for begin, _ in pairwise(sorted(dice.randrange(len(image)) for _ in range(12))):
        with pytest.raises(RunError, match="cannot be read"):
            thaw(image[:begin], load_strategies(config()))


def test_a_name_of_an_attribute_is_never_code():
    """Those of the core itself are in the image: it is the one class here whose objects may differ."""
    shapes, root = msgpack.unpackb(Freezer().freeze(some_core()), strict_map_key=False)
    assert shapes[root[0] - FIRST_SHAPE][0] == "controller.core.core.Core"
    names = shapes[root[0] - FIRST_SHAPE][1]
    code = "state = print('run') or None; x"
    names[names.index("state")] = code
    core = thaw(msgpack.packb([shapes, root]), load_strategies(config()))
    assert vars(core)[code] is not None
    assert not hasattr(core, "state")


@pytest.mark.parametrize("tag", [-1, 11, FIRST_SHAPE + 10_000, "1", None, 1.5])
def test_an_unknown_tag_is_refused(tag):
    shapes, root = msgpack.unpackb(Freezer().freeze(some_core()), strict_map_key=False)
    with pytest.raises(RunError, match="cannot be read"):
        thaw(msgpack.packb([shapes, [tag, *root[1:]]]), load_strategies(config()))


@pytest.mark.parametrize("count", [-1, 1])
def test_an_object_of_more_or_fewer_attributes_is_refused(count):
    shapes, root = msgpack.unpackb(Freezer().freeze(some_core()), strict_map_key=False)

    def altered(item, name):
        """The first object of a class with an attribute too many or too few."""
        if isinstance(item, list) and item:
            if item[0] >= FIRST_SHAPE and shapes[item[0] - FIRST_SHAPE][0] == name:
                item[:] = item[:-1] if count < 0 else [*item, 0]
                return True
            return any(altered(one, name) for one in item[1:])
        return False

    name = "controller.core.state.groups.Group"
    assert altered(root, name)
    with pytest.raises(RunError, match="cannot be read"):
        thaw(msgpack.packb([shapes, root]), load_strategies(config()))
