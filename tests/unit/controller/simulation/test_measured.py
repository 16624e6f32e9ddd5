"""What a run's journal tells of the run itself, beside which its simulation is laid."""

from controller.core.commands import Send
from controller.core.events import Restarted, Tick
from controller.durability.recording import Recorded
from controller.simulation.measured import Measured
from protocol.messages import Segment, Train, TrainItem

TRAINER = b"trainer"


def batch(version, tokens=100):
    item = TrainItem(version, 0, 3, 0.0, 0.0, "stop", (Segment(1, max(0, version - 1), tokens),))
    return [Send(TRAINER, Train(version, (item,)))]


def test_a_step_in_which_the_controller_was_started_again_is_not_among_what_is_measured():
    """A minute without a controller is no error of a simulation that simulates none."""
    measured = Measured()
    for version, now in enumerate((0.0, 1.0, 2.0, 70.0, 71.0)):
        if version == 3:
            measured.take(Recorded(1, 62.0, Restarted("{}", "run", ()), None), [])
        measured.take(Recorded(1, now, Tick(), None), batch(version))
    assert measured.itself(0.0) == (100.0, 2 / 3)
    assert measured.itself(2.0) == (100.0, 1.0)
    assert measured.itself(71.0) is None
