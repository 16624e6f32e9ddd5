"""The 95 % interval of a mean over few seeds.

Invariant: pure; fewer than two values have no interval. Source of the quantiles beyond the table: expansion
of Fisher and Cornish about the normal distribution (Abramowitz and Stegun, 26.7.5), within 0.001 % from 21
degrees of freedom on."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, fmean, stdev

T_975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004,
    2.262157, 2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905,
    2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""Student's t at 97.5 %, for 1, 2, ... degrees of freedom."""
NORMAL_975 = NormalDist().inv_cdf(0.975)


def quantile(freedom: int) -> float:
    """Student's t at 97.5 % for `freedom` degrees of freedom, at least 1."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = NORMAL_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean, by Student's t; None for fewer than two values."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    return quantile(freedom) * stdev(values) / sqrt(len(values))


def with_interval(values: Sequence[float], form: str = ".2f") -> str:
    """The mean and its interval, if there is one, such as `5.25 ±0.11`; `-` without values."""
    if not values:
        return "-"
    width = half_width(values)
    mean = format(fmean(values), form)
    return mean if width is None else f"{mean} ±{width:{form.lstrip('+')}}"


def paired_ratio(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios of values to others of the same seed, without pairs whose other is 0."""
    return [one / other for one, other in zip(values, others, strict=True) if other]
