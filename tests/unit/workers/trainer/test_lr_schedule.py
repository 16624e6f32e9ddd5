"""Learning rates by step."""

import pytest

from protocol.settings import TrainerSettings
from workers.trainer.lr_schedule import lr_share


def rates(steps, **options):
    settings = TrainerSettings(**options)
    return [lr_share(settings, step=step, steps=steps) for step in range(steps + 1)]


def test_a_constant_rate_only_warms_up():
    assert rates(4) == [1.0] * 5
    assert rates(4, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]),
        ("cosine", [0.5, 1.0, 0.868198, 0.55, 0.231802, 0.1, 0.1]),
    ],
)
def test_a_falling_rate_reaches_its_end_with_the_last_step_and_stays_there(schedule, expected):
    found = rates(6, warmup_steps=2, lr_schedule=schedule, lr_end=0.1)
    assert found == pytest.approx(expected, abs=1e-6)
