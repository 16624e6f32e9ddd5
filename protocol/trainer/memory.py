"""Sizes that decide how the trainer spends memory, for the trainer and for what `check` says of it.

Units: bytes, but where elements are named.
"""

CHUNK_ELEMENTS = 1 << 24
"""Logits that the trainer makes at a time: 64 MB in float32, whatever the vocabulary."""
CHUNK_COPIES = 5
"""Tensors of that size, in float32, which are alive together when gradients are made of a chunk."""
