"""Repeats set-up that libraries do at import, in a process that was forked after their import."""

import os

import numpy as np
import torch


def renew() -> None:
    """Set the number of threads from the current environment, and draw a new random seed."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    np.random.seed()  # the state of the library itself, which all forks have inherited
