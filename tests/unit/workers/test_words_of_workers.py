"""Honest workers say nothing that the controller takes for a fault, whatever users give them."""

import logging
import math
import re

import pytest
import torch

from protocol.errors import ConfigError
from protocol.messages import MAX_METRICS, MAX_REWARD, TrainStepFinished
from protocol.wire.codec import from_fields, to_fields
from workers.reward.functions import ScoreRequest, adapt
from workers.reward.worker import check_vocabulary
from workers.trainer.worker import sound

REQUEST = ScoreRequest(3, {}, "p", [1], ["a", "b"], [[1], [2]], ["stop", "length"])


def test_whatever_a_loss_reports_the_controller_takes_what_the_trainer_says(caplog):
    wild = {
        "loss": 0.5,
        "my\nloss": 1.0,
        "\x1b[2J": 2.0,
        "x" * 300: 3.0,
        "": 4.0,
        "nan": math.nan,
        "inf": math.inf,
        "none": None,
        "huge": 10**400,
        "several": torch.zeros(2),
        7: torch.tensor(5.0),
    }
    with caplog.at_level(logging.WARNING):
        metrics = sound(wild | {f"m{n}": 0.0 for n in range(MAX_METRICS)})
    message = TrainStepFinished(1, 0.5, metrics)
    assert from_fields(message.tag, to_fields(message)) == message
    kept = dict(metrics)
    names = ("loss", r"my\nloss", r"\x1b[2J", "x" * 200, "unnamed", "7")
    assert [kept[name] for name in names] == [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
    for name, value in (
        ("nan", "nan"),
        ("inf", "inf"),
        ("none", "None"),
        ("several", r"tensor\(\[0"),
        ("huge", "1000"),
    ):
        assert re.search(f"The metric '{name}' is {value}.*, and is left out", caplog.text)


@pytest.mark.parametrize("value", [1e200, -1e200, 1.1 * MAX_REWARD, 10**31])
async def test_a_reward_that_would_overflow_when_squared_is_named_with_the_limit(value):
    with pytest.raises(
        ConfigError, match=r"for member 0; expected a finite number, of at most 1e\+30 in size"
    ):
        await adapt(lambda completion: value)(REQUEST)


async def test_a_reward_at_the_limit_counts():
    assert await adapt(lambda completion: -MAX_REWARD)(REQUEST) == [-MAX_REWARD] * 2


def test_a_row_with_ids_that_the_model_has_not_is_refused_in_words():
    check_vocabulary([0, 99], 100)
    check_vocabulary([10**6], None)
    with pytest.raises(ValueError, match=r"The row has the token id 100, and the model .* has 100 tokens"):
        check_vocabulary([0, 100], 100)
