"""What a worker says of its machine that no machine has."""

import pytest

from controller.core.decisions.workers.plausibility import MAX_MEMORY_MB, _machine_use
from protocol.messages import MachineUse


@pytest.mark.parametrize(
    "use",
    [MachineUse(5, "cpu"), MachineUse(5, "H100", 80, 80), MachineUse(MAX_MEMORY_MB, "x", 0, MAX_MEMORY_MB)],
)
def test_what_a_machine_may_have_is_believed(use):
    assert _machine_use(use) is None


@pytest.mark.parametrize(
    "use",
    [
        MachineUse(5, "H100", 81, 80),
        MachineUse(MAX_MEMORY_MB + 1, "cpu"),
        MachineUse(5, "x", 0, MAX_MEMORY_MB + 1),
    ],
)
def test_more_than_there_is_is_no_honest_word(use):
    assert "no more than the device has" in (_machine_use(use) or "")
