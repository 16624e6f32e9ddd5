"""A group's id tells what it is for, and what becomes of it follows from that alone."""

import pytest

from controller.core.effects.purposes import Purposes
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from tests.support.core_run import Run


@pytest.mark.parametrize(
    ("id", "purpose"),
    [
        (0, "training"),
        (FIRST_EVALUATION_GROUP - 1, "training"),
        (FIRST_EVALUATION_GROUP, "evaluation"),
        (FIRST_EVALUATION_GROUP + 7, "evaluation"),
    ],
)
def test_the_id_of_a_group_decides_between_the_two(id, purpose):
    core = Run().core
    purposes = Purposes(core.training_groups, core.evaluation)
    assert purposes.of(Group(id)) is getattr(purposes, purpose)
