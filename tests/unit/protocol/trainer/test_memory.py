"""When gradients cross the network."""

import pytest

from protocol.trainer.memory import LARGE_GRADIENT, reduces_every_microbatch

SMALL, LARGE = LARGE_GRADIENT // 4, LARGE_GRADIENT // 4 + 1  # weights


@pytest.mark.parametrize(
    ("when", "weights", "ranks", "expected"),
    [
        ("auto", SMALL, 2, False),
        ("auto", LARGE, 2, True),
        ("auto", SMALL, 1, True),
        ("every_step", LARGE, 2, False),
        ("every_microbatch", SMALL, 8, True),
    ],
)
def test_a_large_gradient_is_never_whole_unless_asked_for(when, weights, ranks, expected):
    assert reduces_every_microbatch(when, weights=weights, ranks=ranks) is expected
