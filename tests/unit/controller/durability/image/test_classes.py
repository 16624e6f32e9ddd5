"""Which classes an image knows, and how their objects are told."""

from collections import deque
from keyword import iskeyword
from pathlib import Path

from controller.core.core import Core
from controller.core.state.batches.contributions import Batch
from controller.core.state.progress.trajectory import Trajectory
from controller.durability.image.classes import CLASSES, NAMES, PACKED_ALONE, attributes_of
from protocol.ids import TrajectoryId
from protocol.messages import Drain


def test_a_class_is_told_by_its_module_and_its_name():
    assert CLASSES["protocol.ids.TrajectoryId"] is TrajectoryId
    assert all(NAMES[kind] == name for name, kind in CLASSES.items())


def test_what_was_imported_by_a_module_is_none_of_its_classes():
    assert deque not in NAMES
    assert Path not in NAMES


def test_attributes_are_in_the_order_in_which_a_class_names_them():
    assert attributes_of(TrajectoryId) == ("group", "member")
    assert (attributes_of(Trajectory) or ())[:2] == ("id", "prompt_tokens")


def test_a_class_may_have_no_attributes_or_leave_them_to_its_objects():
    assert attributes_of(Drain) == ()
    assert attributes_of(Core) is None


def test_every_attribute_name_is_a_word_of_the_language():
    """Lines of code are made of them."""
    for name in (name for kind in NAMES for name in attributes_of(kind) or ()):
        assert name.isidentifier(), name
        assert not iskeyword(name), name


def test_what_is_packed_alone_never_changes():
    assert Batch in PACKED_ALONE
    assert all(issubclass(kind, tuple) for kind in PACKED_ALONE)
