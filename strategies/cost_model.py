"""How long a decode step takes, and so what one more trajectory is worth on an instance.

latency(n, tokens) = attention_b + attention_k * tokens + max(floor, other_b + other_k * n), in seconds per
decode step, for n running trajectories with `tokens` resident tokens; throughput = n / latency, in tokens per
second.
Source: StaleFlow (arXiv 2601.12784), cost model of the rollout coordinator.
"""

from typing import NamedTuple


class Coefficients(NamedTuple):
    """Fitted numbers of one engine; seconds, seconds per trajectory, seconds per token."""

    floor: float
    other_b: float
    other_k: float
    attention_b: float
    attention_k: float


QWEN_7B_TP1 = Coefficients(0.0064, 0.0027, 1.231e-4, 0.0028, 3.35e-8)
"""Published with the StaleFlow release. A safe default for others too: only ratios of gains decide."""


def step_latency(coefficients: Coefficients, running: int, tokens: int) -> float:
    """Seconds per decode step of `running` >= 1 trajectories that hold `tokens` tokens."""
    c = coefficients
    return c.attention_b + c.attention_k * tokens + max(c.floor, c.other_b + c.other_k * running)


def throughput(coefficients: Coefficients, running: int, tokens: int) -> float:
    """Tokens per second of an instance; 0 when it is idle."""
    return running / step_latency(coefficients, running, tokens) if running else 0.0


def marginal_gain(coefficients: Coefficients, running: int, tokens: int, length: int) -> float:
    """Tokens per second that a trajectory of `length` tokens adds to an instance; negative if it
    does harm."""
    before = throughput(coefficients, running, tokens)
    return throughput(coefficients, running + 1, tokens + length) - before


def ideal_gain(coefficients: Coefficients, length: int) -> float:
    """What the trajectory would add to an idle instance."""
    return throughput(coefficients, 1, length)
