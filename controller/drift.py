"""Whether engine and trainer still mean the same policy, as far as the logprobs of what was sampled tell.

Invariant: one warning when it begins, and the next only after a batch that was as it should be.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

GAP = "logprob_gap_p99"
MEMORY = 50  # batches that the running median looks back on
ENOUGH = 10  # batches before it counts
MANY_TIMES = 5.0  # a gap grows with staleness and learning rate, hardly ever so much at once
ROUNDING = 0.02  # nats; below this a gap is what bfloat16 and another order of additions make


class Drift:
    """Watches the p99 of |rollout_logprobs - proximal_logprobs|, batch by batch."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._gaps: deque[float] = deque(maxlen=MEMORY)
        self._is_warned = False

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """A warning, if this batch begins a drift. Metrics without a gap say nothing."""
        gap = metrics.get(GAP)
        if gap is None:
            return None
        usual = median(self._gaps) if len(self._gaps) >= ENOUGH else gap
        self._gaps.append(gap)
        is_sudden = gap > max(ROUNDING, MANY_TIMES * usual)
        is_drifting = gap > self.threshold or is_sudden
        is_new, self._is_warned = is_drifting and not self._is_warned, is_drifting
        if not is_new:
            return None
        kl = metrics.get("mismatch_kl", 0.0)
        expected = f"{self.threshold:g} (trainer.logprob_gap_warning) at most"
        if is_sudden:
            expected = f"about {usual:.3g}, the median of the last {len(self._gaps) - 1} steps"
        return (
            f"Step {step}: one token in a hundred has logprobs that differ by more than {gap:.3g} between "
            f"the engine that sampled it and the trainer (mismatch_kl {kl:.3g}); "
            f"expected {expected}. Training goes on, with truncated importance weights. Look at "
            "staleness/max, trainer.lr and grad_norm first (old tokens under large steps differ), then at "
            "model.dtype and rollout.sampling: an engine in another precision, or with logprobs of another "
            "distribution than the one sampled from, differs at any staleness."
        )
