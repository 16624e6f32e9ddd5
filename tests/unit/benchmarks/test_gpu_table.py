"""The table of a card says of a part that was left out why."""

import pytest
import torch

from benchmarks.gpu.__main__ import measured


def test_a_part_for_which_no_time_is_left_is_not_started():
    with pytest.raises(RuntimeError, match="it was not run: the parts before took all the time"):
        list(measured("no such part", torch.device("cpu"), -2.0))
