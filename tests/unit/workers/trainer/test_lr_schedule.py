"""Learning rates by step."""

import pytest
import torch
import transformers

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
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.868198, 0.55, 0.231802, 0.1]),
    ],
)
def test_a_falling_rate_reaches_its_end_after_the_last_step_and_stays_there(schedule, expected):
    found = rates(6, warmup_steps=2, lr_schedule=schedule, lr_end=0.1)
    assert found == pytest.approx(expected, abs=1e-6)
    settings = TrainerSettings(warmup_steps=2, lr_schedule=schedule, lr_end=0.1)
    assert lr_share(settings, step=9, steps=6) == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_without_a_warm_up_it_falls_as_that_of_transformers(schedule):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = transformers.get_scheduler(schedule, optimizer, num_warmup_steps=0, num_training_steps=3)
    expected = []
    for _ in range(4):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert rates(3, lr_schedule=schedule) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (3, 0), (4, 3), (5, 2)])
def test_each_step_trains_though_the_rate_ends_at_0(schedule, steps, warmup):
    assert min(rates(steps, warmup_steps=warmup, lr_schedule=schedule)[:-1]) > 0
