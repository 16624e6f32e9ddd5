"""Recognizes out-of-memory errors among those that torch raises.

Invariant: pure.
"""

import re

import torch

TEXT = re.compile(r"out of memory|allocate|alloc_failed", re.IGNORECASE)
"""Matches RuntimeErrors: the CPU's allocator and CUDA's libraries have no error class for it."""


def is_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(TEXT.search(str(error)))
