"""Which classes an image knows, and how their objects are told."""

from collections import deque
from pathlib import Path

from controller.core.state.batches.contributions import Batch
from controller.core.state.progress.trajectory import Trajectory
from controller.durability.image.classes import CLASSES, NAMES, PACKED_ALONE, attributes_of
from protocol.ids import TrajectoryId


def test_a_class_is_told_by_its_module_and_its_name():
    assert CLASSES["protocol.ids.TrajectoryId"] is TrajectoryId
    assert all(NAMES[kind] == name for name, kind in CLASSES.items())


def test_what_was_imported_by_a_module_is_none_of_its_classes():
    assert deque not in NAMES
    assert Path not in NAMES


def test_attributes_are_in_the_order_in_which_a_class_names_them():
    assert attributes_of(TrajectoryId) == ("group", "member")
    assert attributes_of(Trajectory)[:2] == ("id", "prompt_tokens")


def test_every_attribute_name_is_a_word_of_the_language():
    """Lines of code are made of them."""
    assert all(name.isidentifier() for kind in NAMES for name in attributes_of(kind))


def test_what_is_packed_alone_never_changes():
    assert Batch in PACKED_ALONE
    assert all(issubclass(kind, tuple) for kind in PACKED_ALONE)
