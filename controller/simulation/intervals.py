"""The 95 % interval of a mean over few seeds.

Invariant: pure; of fewer than two values there is none.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t at 97.5 %, for 1, 2, ... degrees of freedom."""
LARGE = 1.96


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of their mean, by Student's t; None for fewer than two."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    t = T_975[freedom - 1] if freedom <= len(T_975) else LARGE
    return t * stdev(values) / sqrt(len(values))


def with_interval(values: Sequence[float], form: str = ".2f") -> str:
    """Their mean, and its interval where there is one, such as `5.25 ±0.11`; `-` of none."""
    if not values:
        return "-"
    width = half_width(values)
    mean = format(fmean(values), form)
    return mean if width is None else f"{mean} ±{width:{form.lstrip('+')}}"


def paired_ratio(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of each pair of one seed, the first over the second."""
    return [one / other for one, other in zip(values, others, strict=True) if other]
