"""What users' functions return for a number is taken as one, whichever library has made it."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from protocol.rewards.scalars import plain_number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.True_, True), (np.isclose(1.0, 1.0), True), (np.float32(0.5), 0.5), (np.int64(3), 3),
        (np.array(2.0), 2.0), (Decimal("0.25"), 0.25), (Decimal("Infinity"), math.inf),
        (torch.tensor(0.25), 0.25), (torch.tensor(True), True), (1, 1), (False, False),
        ("1", "1"), (None, None),
    ],
)  # fmt: skip
def test_a_scalar_is_pythons_own(value, expected):
    found = plain_number(value)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("text", ["nan", "snan"])
def test_a_decimal_that_is_no_number_stays_none(text):
    assert math.isnan(plain_number(Decimal(text)))


@pytest.mark.parametrize("value", [np.ones(1), torch.ones(1), np.ones((0,)), [1.0], {"score": 1.0}])
def test_anything_else_is_as_it_was(value):
    assert plain_number(value) is value
