"""Sizes that decide how the trainer spends memory, for the trainer and for what `check` says of it.

Units: bytes, but where elements are named.
"""

from typing import Literal

CHUNK_ELEMENTS = 1 << 24
"""Logits that the trainer makes at a time: 64 MB in float32, whatever the vocabulary."""
CHUNK_COPIES = 5
"""Tensors of that size, in float32, which are alive together when gradients are made of a chunk."""
GRADIENT = 4
"""Bytes of each weight's gradient."""
LARGE_GRADIENT = 1 << 30
"""A whole gradient above this is not kept by any rank where `trainer.reduce_gradients` is `auto`."""


def reduces_every_microbatch(
    when: Literal["auto", "every_microbatch", "every_step"], *, weights: int, ranks: int
) -> bool:
    """Whether gradients of so many weights are reduced with every micro-batch."""
    is_large = weights * GRADIENT > LARGE_GRADIENT
    return ranks == 1 or when == "every_microbatch" or (when == "auto" and is_large)
