"""What a run's journal tells of the run itself, beside which its simulation is laid."""

from controller.core.commands import Send
from controller.core.events import Received, Restarted, Tick
from controller.durability.recording import Recorded
from controller.simulation.measured import Measured
from protocol.messages import (
    Attach,
    PolicyPublished,
    Released,
    Segment,
    Train,
    TrainItem,
    TrainStepFinished,
)

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


def test_what_streaming_has_trained_ahead_is_among_the_seconds_of_its_step():
    """The tokens of a step are all of its batch's, so its seconds are too, or a token would seem cheap."""
    measured = Measured()
    measured.take(Recorded(1, 0.0, Tick(), None), batch(0))
    finished = TrainStepFinished(1, 0.5, (("loss", 0.0), ("time_s/ahead", 1.5)))
    measured.take(Recorded(2, 1.0, Received(TRAINER, finished), None), [])
    assert (measured.train_s, measured.trained_tokens) == ([2.0], 103)


def test_a_shared_device_changes_sides_in_the_time_that_the_trainer_of_the_run_took():
    """Not in that of a model of 7 billion parameters, which the configuration assumes."""
    measured = Measured()
    for number, (name, role) in enumerate((("rollout-0", "rollout"), ("trainer", "trainer"))):
        measured.take(Recorded(1, 0.0, Received(name, Attach(role, name, 1, "here")), None), [])
        for release_s in (0.25 + number, 0.75 + number):
            measured.take(Recorded(2, 1.0, Received(name, Released(8, 0, release_s)), None), [])
    assert measured.offload_s == [1.25, 1.75]


def test_versions_that_a_trainer_finds_after_the_death_of_another_are_no_publications():
    """It announces up to four of them, which have taken it no time."""
    measured = Measured()
    for version, publish_s in ((3, 2.0), (2, 0.0), (3, 0.0), (4, 4.0)):
        said = PolicyPublished(version, "there", "digest", 1, publish_s)
        measured.take(Recorded(1, 0.0, Received(TRAINER, said), None), [])
    assert measured.publish_s == [2.0, 4.0]
