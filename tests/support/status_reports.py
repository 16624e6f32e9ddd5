"""Status reports of machines whose cost is known, and how far a fit is from it."""

import random
from collections.abc import Callable

from protocol.messages import InstanceStatus
from strategies.cost_model import QWEN_7B_TP1, Coefficients, prefill_s, step_latency
from strategies.fitting import OnlineFit
from tests.support.published_engines import PUBLISHED

TINY = Coefficients(0.003, 0.0028, 8e-6, 0.0001, 2e-9)  # our own engine on a CPU
LINEAR = Coefficients(0.0, 0.0004, 9e-4, 0.0, 1e-7)  # no floor at all, far from the start
MACHINES = PUBLISHED | {"tiny": TINY, "linear": LINEAR}
IDLE = InstanceStatus(0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0, ())
Load = Callable[[random.Random], tuple[int, int]]


class Reports:
    """Status reports of a machine with these coefficients, about 40 decode steps apart."""

    def __init__(self, seed: int, *, noise: float = 0.05, outliers: float = 0.0) -> None:
        self.random, self.noise, self.outliers = random.Random(seed), noise, outliers
        self.last = IDLE

    def next(self, truth: Coefficients, running: int, tokens: int, *, context: bool = True) -> InstanceStatus:
        steps = self.random.randint(20, 60)
        latency = step_latency(truth, running, tokens) * self.random.lognormvariate(0.0, self.noise)
        if self.random.random() < self.outliers:
            latency *= 20
        last, prompts = self.last, self.random.randint(0, 3) * 500
        self.last = InstanceStatus(
            sequence=last.sequence + 1, policy_version=last.sequence // 50, running=running, waiting=0,
            resident_tokens=tokens, decode_steps=last.decode_steps + steps,
            decode_tokens=last.decode_tokens + steps * running, decode_s=last.decode_s + steps * latency,
            prefill_tokens=last.prefill_tokens + prompts,
            prefill_s=last.prefill_s + 3 * prompts / 500 * prefill_s(QWEN_7B_TP1, 500),
            decode_context=last.decode_context + (steps * tokens if context else 0), preemptions=0, queued=(),
        )  # fmt: skip
        return self.last


def wide(draw: random.Random) -> tuple[int, int]:
    running = round(2 ** draw.uniform(0, 7))
    return running, running * draw.randint(500, 8000)


def three_sizes(draw: random.Random) -> tuple[int, int]:
    running = draw.choice((4, 16, 64))
    return running, running * draw.randint(1000, 3000)


def constant(draw: random.Random) -> tuple[int, int]:
    return 8, 8 * 1500


def learn(fit: OnlineFit, reports: Reports, truth: Coefficients, load: Load, count: int) -> None:
    for _ in range(count):
        running, tokens = load(reports.random)
        before = reports.last
        fit.observe(before, reports.next(truth, running, tokens))


def errors(fit: OnlineFit, truth: Coefficients, load: Load) -> list[float]:
    """Relative errors of the fit over loads like those observed."""
    draw = random.Random(99)
    loads = [load(draw) for _ in range(300)]
    true = [step_latency(truth, *load) for load in loads]
    fitted = [step_latency(fit.coefficients, *load) for load in loads]
    return [abs(a - b) / b for a, b in zip(fitted, true, strict=True)]
