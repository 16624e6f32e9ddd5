"""The simulated trainer keeps to its orders as the real one does."""

import pytest

from protocol.messages import PolicyPublished, Segment, Take, Train, TrainAhead, TrainItem, TrainStepFinished
from workers.simulated.trainer import SimulatedTrainer, TrainerTimes


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("is_published", [False, True])
def test_a_version_that_instances_have_is_made_again_and_not_told_of(is_published, is_early):
    trainer = SimulatedTrainer(TrainerTimes(is_early=is_early))
    trainer.go_on()
    said = trainer.handle(0.0, Train(3, (), is_published))
    said += trainer.wake(1000.0)
    assert [one.policy_version for one in said if isinstance(one, TrainStepFinished)] == [4]
    assert any(isinstance(one, PolicyPublished) for one in said) is not is_published


def test_the_seconds_of_a_step_are_without_those_of_taking_the_device():
    """As a real trainer measures them: the device is taken, and groups ahead are trained, before."""
    trainer = SimulatedTrainer(TrainerTimes(base_s=2.0, offload_s=8.0, token_s=1.0))
    trainer.go_on()
    item = TrainItem(3, 0, 3, 0.0, 0.0, "stop", (Segment(1, 3, 1),))
    trainer.handle(0.0, Take())
    trainer.handle(0.0, TrainAhead(3, (item,)))
    trainer.handle(1.0, Train(3, (), ahead=1))
    assert trainer.next_wake_s() == 12.0
    (finished,) = [one for one in trainer.wake(1000.0) if isinstance(one, TrainStepFinished)]
    assert (finished.train_s, dict(finished.metrics)["time_s/ahead"]) == (2.0, 4.0)
