"""Sums out of reasoning-gym, as rows."""

from collections.abc import Iterator
from itertools import count
from typing import Any


def prompts(*, seed: int) -> Iterator[dict[str, Any]]:
    """Rows without end: the item as it is, and as a prompt the digits that the ledger's model can read."""
    import reasoning_gym

    for block in count():
        for item in reasoning_gym.create_dataset("chain_sum", size=64, seed=seed + block):
            digits = "".join(sign for sign in item["metadata"]["expression"] if sign.isdigit())
            yield {"prompt": f"{digits}:", "entry": item}
