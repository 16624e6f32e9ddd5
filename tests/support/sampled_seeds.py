"""Seeds of a sweep: a sample in every run of the tests, all of them in the thorough tier."""

from typing import Any

import pytest


def sampled_seeds(sample: int, count: int) -> list[Any]:
    """Seeds 0 to count - 1 as parameters; those from `sample` on are marked `thorough`."""
    return [
        *range(sample),
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(sample, count)),
    ]
