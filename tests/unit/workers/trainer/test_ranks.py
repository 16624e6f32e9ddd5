"""A trainer that cannot join its ranks says what to look at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
# in a process of its own: a process has one group of ranks, which other tests may have made in this one
JOIN = """
import sys
import torch
from torch.distributed import HashStore
from protocol.errors import ConfigError
from workers.trainer import ranks
ranks._meet = lambda: (HashStore(), 0, int(sys.argv[1]))
try:
    ranks.Ranks(torch.device("cpu"))
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, "a network interface that is up (the loopback is enough)"), (2, "as many GPUs")],
)
def test_a_group_that_does_not_come_together_is_told_with_the_interface_that_was_chosen(size, expected):
    joined = subprocess.run(
        [sys.executable, "-c", JOIN, str(size)], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "nowhere0"},
    )  # fmt: skip
    assert expected in joined.stdout
    assert "GLOO_SOCKET_IFNAME=nowhere0 in the environment must name one of this host." in joined.stdout
