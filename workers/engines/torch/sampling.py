"""Draws tokens from logits, with noise that is a function of (seed, position in the response) alone.

Invariants: a token of probability 0 is never drawn; results do not depend on the other rows of a batch
(except for the rounding of the forward pass); no random number generator has any state.

Shapes: B sequences, V vocabulary.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from protocol.kept_sets import WORD_BITS, KeptSet
from protocol.settings import SamplingSettings

LEADING = 4096
"""Most probable tokens of a row, among which top-p looks first."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniform_noise(seeds_B: np.ndarray, positions_B: np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1), float64 [B], one for each (seed, position), both taken modulo 2**64.

    They have 52 bits, so that their product with a positive total always stays below it. Source: splitmix64
    (Steele, Lea, Flood 2014), used as a counter-based generator.
    """
    with np.errstate(over="ignore"):
        hashed_B = _splitmix64(
            _splitmix64(seeds_B.astype(np.uint64)) + positions_B.astype(np.uint64) * _GOLDEN
        )
    return (hashed_B >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _splitmix64(values_B: np.ndarray) -> np.ndarray:
    mixed = values_B + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


class Drawn(NamedTuple):
    """One token for each row."""

    tokens_B: torch.Tensor  # int64
    logprobs_B: torch.Tensor  # float32
    is_kept_BV: torch.Tensor | None  # the set each was drawn from; None: the whole vocabulary


def sample(logits_BV: torch.Tensor, noise_B: torch.Tensor, settings: SamplingSettings) -> Drawn:
    """Tokens by inverse transform of `noise_B` (float64), and their logprobs.

    The logprob is that of the distribution drawn from: after temperature, then top-k, top-p and min-p,
    renormalised; tokens with the logit -inf are cut off already. At temperature 0 the token is the most
    probable one, and its logprob is that under the model's own distribution (temperature 1, nothing cut):
    under the distribution drawn from it would always be 0.
    """
    logits_BV, is_kept_BV = logits_BV.float(), None
    if settings.temperature == 0:
        logprobs_BV = torch.log_softmax(logits_BV, -1)
        tokens_B = logits_BV.argmax(-1)
    else:
        logprobs_BV = truncated_logprobs(logits_BV, settings)
        is_kept_BV = logprobs_BV > -torch.inf if settings.is_cut else None
        cdf_BV = logprobs_BV.double().exp_().cumsum(-1)
        # right=True skips tokens of probability 0: the first whose cumulative probability exceeds the noise
        targets_B1 = noise_B[:, None] * cdf_BV[:, -1:]
        tokens_B = torch.searchsorted(cdf_BV, targets_B1, right=True)[:, 0].clamp_(max=cdf_BV.shape[1] - 1)
    return Drawn(tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0], is_kept_BV)


def kept_sets(is_kept_BV: torch.Tensor) -> list[KeptSet]:
    """Each row's kept set, encoded for the wire. Of small and nearly full sets only ids leave the device."""
    vocabulary, few = is_kept_BV.shape[1], is_kept_BV.shape[1] // WORD_BITS
    counts_B = is_kept_BV.sum(-1).cpu().numpy()
    is_small_B, is_near_B = counts_B <= few, counts_B >= vocabulary - few
    small = iter(_listed(is_kept_BV, is_small_B))
    cut = iter(_listed(~is_kept_BV, is_near_B & ~is_small_B))
    rest = torch.from_numpy(np.flatnonzero(~is_small_B & ~is_near_B)).to(is_kept_BV.device)
    large = iter(is_kept_BV[rest].cpu().numpy())
    found: list[KeptSet] = []
    for is_small, is_near in zip(is_small_B.tolist(), is_near_B.tolist(), strict=True):
        if is_small:
            found.append(KeptSet.of(next(small), vocabulary))
        elif is_near:
            found.append(KeptSet.without(next(cut)))
        else:
            found.append(KeptSet.of(np.flatnonzero(next(large)), vocabulary))
    return found


def _listed(is_in_BV: torch.Tensor, is_wanted_B: np.ndarray) -> list[np.ndarray]:
    """The ids that are true in each wanted row."""
    rows = torch.from_numpy(np.flatnonzero(is_wanted_B)).to(is_in_BV.device)
    wanted_bV = is_in_BV[rows]
    ids = wanted_bV.nonzero()[:, 1].to(torch.int32).cpu().numpy()
    return np.split(ids, np.cumsum(wanted_bV.sum(-1).cpu().numpy())[:-1])


def truncated_logprobs(logits_BV: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Log-probabilities [B, V] after temperature (> 0), top-k, top-p and min-p; -inf for tokens cut off.

    Ties at the k-th place are all kept. Top-p keeps tokens before which less than `top_p` accumulated.
    """
    if settings.temperature != 1.0:
        logits_BV = logits_BV / settings.temperature
    if 0 < settings.top_k < logits_BV.shape[1]:
        smallest_B1 = logits_BV.topk(settings.top_k, -1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, -torch.inf)
    if settings.top_p < 1.0:
        logits_BV = logits_BV.masked_fill(_beyond(logits_BV, settings.top_p), -torch.inf)
    if settings.min_p > 0:
        least_B1 = logits_BV.amax(-1, keepdim=True) + math.log(settings.min_p)
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    return torch.log_softmax(logits_BV, -1)


def _beyond(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Which tokens top-p cuts off: bool [B, V].

    The vocabulary is sorted only in rows whose most probable tokens do not decide it: sorting 16 rows of 152k
    took 180 ms on one core, finding their first 4,096 took 19.
    """
    if logits_BV.shape[1] <= LEADING:
        return _beyond_in_order(logits_BV, top_p)
    leading_Bk = logits_BV.topk(LEADING, -1).values
    normalizer_B1 = logits_BV.double().logsumexp(-1, keepdim=True)
    probs_Bk = (leading_Bk.double() - normalizer_B1).exp_()
    is_kept_Bk = probs_Bk.cumsum(-1) - probs_Bk < top_p
    is_kept_Bk[:, 0] = True
    counts_B = is_kept_Bk.sum(-1)
    least_B1 = leading_Bk.gather(-1, counts_B[:, None] - 1)
    is_cut_BV = logits_BV < least_B1
    has_ties_B = (logits_BV >= least_B1).sum(-1) != counts_B  # of which the first are kept
    open_rows = (has_ties_B | (counts_B == LEADING)).nonzero()[:, 0]
    if len(open_rows):
        is_cut_BV[open_rows] = _beyond_in_order(logits_BV[open_rows], top_p)
    return is_cut_BV


def _beyond_in_order(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probs_BV = sorted_BV.softmax(-1, dtype=torch.float64)
    is_cut_BV = probs_BV.cumsum(-1) - probs_BV >= top_p
    is_cut_BV[:, 0] = False
    return torch.zeros_like(is_cut_BV).scatter_(-1, order_BV, is_cut_BV)
