"""What libraries do when they are imported, done again in a process that was forked after that."""

import os

import numpy as np
import torch


def renew() -> None:
    """Take the number of threads from the environment, as it is now, and draw another seed."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    np.random.seed()  # the state of the library itself, which all forks have inherited
