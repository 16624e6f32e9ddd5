"""Floating-point operations of a train step, and their share of a device's peak (MFU).

Invariants: pure; operations that the algorithm needs are counted, as in PaLM (arXiv 2204.02311, appendix B):
products of matrices, a multiplication and an addition each, without norms, softmax or the optimizer, and
without what is computed again to save memory; causal attention counts its half; a device that is not in the
table has no peak, and so no MFU.

Units: FLOPs; peaks in FLOPs per second of one device, dense, for products of 16-bit numbers.
"""

import re
from typing import NamedTuple

PEAKS = (
    (r"\bB200\b", 2250e12),
    (r"\bH100 PCIe\b", 756e12),
    (r"\bH100 NVL\b", 835e12),
    (r"\b(H100|H200|H800|GH200)\b", 989e12),
    (r"\bH20\b", 148e12),
    (r"\b(A100|A800)\b", 312e12),
    (r"\bA30\b", 165e12),
    (r"\bL40S\b", 362e12),
    (r"\bL40\b", 181e12),
    (r"\bL4\b", 121e12),
    (r"\bMI300X\b", 1307e12),
)
"""By a pattern of the device's name, the first that fits. Source: data sheets of the makers, dense, BF16."""
HALVES = ("bfloat16", "float16")


def peak_flops(device: str, dtype: str) -> float | None:
    """The peak of a device, by its driver's name for it, in this precision; None if the table lacks it.

    A part of a device (MIG) has none, nor has a precision of 32 bits, whose peak depends on settings.
    """
    if dtype not in HALVES or re.search(r"\bMIG\b", device):
        return None
    return next((peak for pattern, peak in PEAKS if re.search(pattern, device)), None)


class Arithmetic(NamedTuple):
    """The sizes of a model that decide how many operations one of its tokens takes."""

    linear: int  # weights of linear layers that each token passes, the head not among them
    trained: int  # of these, those that get a gradient
    head: int  # weights of the head, which only positions with a sampled token pass
    trained_head: int
    attention: int  # heads * size of a head, summed over the layers with attention


class Passes(NamedTuple):
    """How often a train step passes each token through a model."""

    trained: int = 1  # forward and backward
    only_forward: int = 0  # proximal and reference logprobs


ONCE = Passes()


def train_flops(
    model: Arithmetic, *, tokens: int, sampled: int, squares: int, passes: Passes = ONCE
) -> float:
    """Operations of a batch, by its tokens and sampled tokens; `squares`: sum of its squared lengths.

    Forward: 2 per weight and token, and 2 * length ** 2 / 2 for each of the two products of attention.
    Backward: the same for the gradients of inputs, 2 per trained weight and token for those of weights, and
    twice the forward of attention.
    """
    dense = 2.0 * (model.linear * tokens + model.head * sampled)
    weights = 2.0 * (model.trained * tokens + model.trained_head * sampled)
    attention = 2.0 * model.attention * squares
    return passes.trained * (2 * dense + weights + 3 * attention) + passes.only_forward * (dense + attention)
