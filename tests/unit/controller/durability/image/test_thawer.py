"""What is no image of this release is refused in words, and none of it runs."""

import gc
import random
from collections import Counter, OrderedDict, deque
from itertools import pairwise

import msgpack
import numpy as np
import pytest

from controller.config.strategies import load_strategies
from controller.durability.image.classes import ARRAY, DEQUE, FIRST_SHAPE, LIST, MODEL, TUPLE
from controller.durability.image.freezer import Freezer, _Encoder
from controller.durability.image.thawer import Thawer, _Decoder, thaw
from protocol.errors import LocalError, RunError
from protocol.ids import TrajectoryId
from protocol.messages import Drain, Segment
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


def encoded(value, first=None):
    return _Encoder(first, lambda one: pytest.fail("packed alone")).whole(value)


def decoded(image, first=None):
    shapes, root = msgpack.unpackb(image, strict_map_key=False)
    return _Decoder(shapes, first, {}).whole(root)


def test_every_kind_of_value_comes_back_as_it_was():
    first, shared = object(), [1]
    array = np.arange(4.0).reshape(2, 2)[:, ::-1]
    few = deque([1, 2], maxlen=2)
    value = [
        shared, {(1, 2): shared, "first": first}, few, Counter({"a": 1}), {3, 1}, array, np.float64(2.5),
        (shared,), True, None, 2**63, b"bytes", float("inf"), array, few, TrajectoryId(1, 2), Drain(),
        Segment(1, 2, 3),
    ]  # fmt: skip
    found = decoded(encoded(value, first), first)
    assert found[0] is found[1][1, 2] is found[7][0]
    assert found[1]["first"] is first
    assert found[5] is found[13]
    assert found[2] is found[14]
    assert (found[2].maxlen, found[4], found[3]) == (2, {1, 3}, Counter({"a": 1}))
    assert found[5].flags.writeable
    assert found[5].tolist() == array.tolist()
    assert [type(one) for one in found] == [type(one) for one in value]
    assert (found[6:13], found[15:]) == (value[6:13], value[15:])


def test_a_list_may_hold_itself():
    around: list[object] = []
    around.append(around)
    found = decoded(encoded(around))
    assert found[0] is found


def test_sets_of_equal_values_have_equal_images():
    """They are sorted: the order of a set of strings is another one in every process."""
    assert encoded({"b", "a", "c"}) == encoded({"c", "b", "a"})
    assert encoded({"b", "a", "c"}).index(b"\xa1a") < encoded({"b", "a", "c"}).index(b"\xa1c")


@pytest.mark.parametrize("value", [frozenset((1,)), OrderedDict(), np.float32(1), np.int64(3)])
def test_values_of_no_known_kind_are_refused(value):
    with pytest.raises(LocalError, match="which no image can hold"):
        encoded([value])


def test_what_has_made_a_core_is_gone_without_the_garbage_collector():
    """It holds all objects of the core, and a resumed run freezes what is there for the collector."""
    core, strategies = some_core(), load_strategies(config())
    gc.collect()
    gc.disable()
    try:
        thawer = Thawer(strategies)
        thawer.thaw(Freezer().freeze(core))
        assert thawer.alone
        assert [one for one in gc.get_objects() if isinstance(one, _Decoder | _Encoder)] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("shapes", "root"),
    [
        ([["subprocess.Popen", ["pid"]]], [FIRST_SHAPE, 0]),
        ([], [MODEL, "pydantic.root_model.RootModel", "{}"]),
        ([["controller.core.core.Other", []]], [FIRST_SHAPE]),
    ],
)
def test_no_class_is_made_that_is_none_of_ours(shapes, root):
    with pytest.raises(RunError, match="cannot be read: KeyError"):
        thaw(msgpack.packb([shapes, root]), load_strategies(config()))


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ([DEQUE, 2**63], "OverflowError"),
        ([ARRAY, "(1,", [1], b""], "SyntaxError"),
        ([LIST, [LIST]], "holds list; expected a Core"),
        ([TUPLE, 1], "holds tuple; expected a Core"),
    ],
)
def test_what_is_no_core_is_refused_in_words(root, reason):
    with pytest.raises(RunError, match=reason):
        thaw(msgpack.packb([[], root]), load_strategies(config()))


def test_an_image_that_is_nested_too_deeply_is_refused():
    root: list[object] = [LIST]
    for _ in range(500):  # msgpack unpacks 510; of the frames of Python, 3.11 takes three a level, 3.12 two
        root = [LIST, root]
    with pytest.raises(RunError, match="cannot be read: RecursionError"):
        thaw(msgpack.packb([[], root]), load_strategies(config()))


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
