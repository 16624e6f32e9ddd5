"""Tells memory that ran out from whatever else torch raises.

Invariant: pure.
"""

import re

import torch

TEXT = re.compile(r"out of memory|allocate|alloc_failed", re.IGNORECASE)
"""Of a RuntimeError: the CPU's allocator and the libraries of CUDA have no class of their own."""


def is_of_memory(error: BaseException) -> bool:
    """Whether it says that there was no memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(TEXT.search(str(error)))
