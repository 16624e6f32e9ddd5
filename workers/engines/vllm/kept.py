"""Reads the kept sets of vLLM's tokens from their logprobs, if top-k bounds the number of kept tokens.

vLLM 0.32 has `return_sampling_mask`, which needs top-k too, its second model runner, and no greedy request in
the whole engine. The processed logprobs show the same on every device: cut tokens have -inf.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from protocol.errors import RunError
from protocol.kept_sets import EVERYTHING, KeptSet
from protocol.settings import SamplingSettings

TIES = 32  # with the k-th logit, beyond k: bfloat16 logits near 20 are an eighth apart


class Reported(Protocol):
    """vLLM's `Logprob`."""

    logprob: float


class KeptReader:
    """Reads the kept sets of one engine, under training's sampling."""

    def __init__(self, sampling: SamplingSettings, *, stop_tokens: Sequence[int], vocabulary: int) -> None:
        self._sampling, self._vocabulary = sampling, vocabulary
        self._no_stops = KeptSet.without(np.array(sorted(stop_tokens), dtype=np.int32))
        is_listed = sampling.is_cut and sampling.top_k > 0
        self.logprobs = min(2 * sampling.top_k + TIES, vocabulary) if is_listed else 0
        """The number of logprobs to request per token, besides the sampled one's."""

    def read(self, logprobs: Mapping[int, Reported], position: int) -> KeptSet:
        """The set that the token at this position of its response was drawn from.

        Raises: RunError if more tokens tie for the k-th place than were requested.
        """
        if not self.logprobs:
            return self._no_stops if position < self._sampling.min_tokens else EVERYTHING
        kept = sorted(token for token, found in logprobs.items() if found.logprob > -math.inf)
        if self.logprobs <= len(kept) < self._vocabulary:
            raise RunError(
                f"vLLM kept {len(kept)} tokens or more at top_k {self._sampling.top_k}, and tells of no "
                "more: so many logits are equal. Expected fewer ties; set model.dtype: float32, or top_k: 0."
            )
        return KeptSet.of(np.array(kept), self._vocabulary)
