"""The simulated trainer keeps to its orders as the real one does."""

import pytest

from protocol.messages import PolicyPublished, Train, TrainStepFinished
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
