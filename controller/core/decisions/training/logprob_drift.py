"""Warns when the logprobs of engine and trainer drift apart, so that they no longer share one policy.

Invariant: each kind of drift is warned of once, and again only after a batch without it.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from statistics import median

GAP = "logprob_gap_p99"
MEMORY = 50  # batches of the running median
ENOUGH = 10  # batches from which on the median counts
MANY_TIMES = 5.0  # staleness and learning rate hardly ever raise the gap so much at once
ROUNDING = 0.02  # nats; below this a gap is what bfloat16 and another order of additions make
TEMPERATURE = 0.03  # share; an engine in bfloat16 is 0.002 off (python -m benchmarks.engine_mismatch)
CUT = 0.01  # probability; 0.0007 at most in the 140 steps of a quickstart at staleness 0 to 2
ERRORS = 4.0  # standard errors on top of these; exceeded by chance once in 30,000 batches
FRESH_TOKENS = 100  # least tokens from which a temperature is estimated
LEAST_KL = 1e-6  # nats; of rounding in float32 1e-11 at most, of a temperature 5 % off 2e-4
OF_CUT = {"engine/cut", "engine/cut_error"}  # metrics that are judged only together
OF_TEMPERATURE = {"engine/temperature", "engine/temperature_error", "engine/fresh_tokens"}


class LogprobDrift:
    """Watches the logprob metrics of each batch (workers/trainer/losses/metrics.py)."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._gaps: deque[float] = deque(maxlen=MEMORY)
        self._warned: dict[str, None] = {}  # kinds of drift that were warned of and persist

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """A warning for each kind of drift that begins with this batch; None if none does.

        A kind whose metrics are missing is not judged.
        """
        new: list[str] = []
        for kind, text in self._judge(metrics):
            if text and kind not in self._warned:
                new.append(f"Step {step}: {text}")
                self._warned[kind] = None
            elif not text:
                self._warned.pop(kind, None)
        return "\n".join(new) or None

    def _judge(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str | None]]:
        """(kind, what is wrong or None) for each kind of drift that these metrics can show."""
        if (gap := metrics.get(GAP)) is not None:
            yield "gap", self._gap(gap, metrics.get("mismatch_kl", 0.0))
        cut = None
        if metrics.keys() >= OF_CUT:
            cut = _cut(metrics)
            yield "cut", cut
        if _tells_temperature(metrics) and not cut:  # a cut looks a little like another temperature
            yield "temperature", _temperature(metrics)

    def _gap(self, gap: float, kl: float) -> str | None:
        usual = median(self._gaps) if len(self._gaps) >= ENOUGH else gap
        self._gaps.append(gap)
        is_sudden = gap > max(ROUNDING, MANY_TIMES * usual)
        if not (gap > self.threshold or is_sudden):
            return None
        expected = f"{self.threshold:g} (trainer.logprob_gap_warning) at most"
        if is_sudden:
            expected = f"about {usual:.3g}, the median of the last {len(self._gaps) - 1} steps"
        return (
            f"one token in a hundred has logprobs that differ by more than {gap:.3g} between the engine that "
            f"sampled it and the trainer (mismatch_kl {kl:.3g}); expected {expected}. Training goes on, with "
            "truncated importance weights. Look at staleness/max, trainer.lr and grad_norm first (old tokens "
            "under large steps differ), then at model.dtype and rollout.sampling: an engine in another "
            "precision, or with logprobs of another distribution than the one sampled from, differs at any "
            "staleness."
        )


def is_other_temperature(metrics: Mapping[str, float]) -> bool:
    """Whether tokens sampled from exactly the trained weights show another temperature than the trainer's.

    With a policy that is certain of every token the estimate would measure rounding alone.
    """
    if not _tells_temperature(metrics):
        return False
    off = abs(metrics["engine/temperature"] - 1)
    is_far = off > TEMPERATURE + ERRORS * metrics["engine/temperature_error"]
    return is_far and metrics.get("engine/fresh_kl", inf) > LEAST_KL


def _tells_temperature(metrics: Mapping[str, float]) -> bool:
    return metrics.keys() >= OF_TEMPERATURE and metrics["engine/fresh_tokens"] >= FRESH_TOKENS


def _temperature(metrics: Mapping[str, float]) -> str | None:
    share, error = metrics["engine/temperature"], metrics["engine/temperature_error"]
    if not is_other_temperature(metrics):
        return None
    return (
        f"the engine's logprobs are those of {share:.2f} (± {error:.2f}) times the trainer's temperature, on "
        f"{metrics['engine/fresh_tokens']:.0f} tokens that the very weights of this step sampled; expected "
        f"1 ± {TEMPERATURE:g}. Training goes on, with importance weights for a policy that is not the "
        "trainer's. Look at what the engine does to logits beside rollout.sampling.temperature (its own "
        "temperature, penalties, generation_config.json), and whether its logprobs are taken after it."
    )


def _cut(metrics: Mapping[str, float]) -> str | None:
    cut, error = metrics["engine/cut"], metrics["engine/cut_error"]
    if cut <= CUT + ERRORS * error:
        return None
    return (
        f"responses are drawn from {1 - cut:.1%} of the trainer's distribution, as if the rest were cut off "
        f"(± {error:.1%}); expected {1 - CUT:.0%} at least. Importance weights are too small by as much. "
        "What rollout.sampling cuts off (top_p, top_k, min_p, min_tokens) is trained as it was drawn, so "
        "look at what else the engine leaves out: masks, banned tokens, defaults of its own, or kept sets "
        "that it tells wrongly."
    )
