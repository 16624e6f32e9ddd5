"""The time of a simulated engine's steps, and the number of steps within a time.

Invariants: pure numbers; a stretch of decode steps is an arithmetic series, so its time and its inverse have
closed forms without a loop over steps. Attention to a prefix that is prefilled already costs time, too.
Source: cost model of PSRL's dry-run simulator (prefill, decode and mixed steps).
"""

from math import sqrt
from typing import NamedTuple

BLOCK = 16  # tokens of one block of the KV cache


class StepCost(NamedTuple):
    """Coefficients, in seconds; `simulation.engine` in the configuration explains each."""

    floor_s: float = 0.0069
    step_base_s: float = 0.0027
    token_s: float = 0.000133
    decode_base_s: float = 0.0028
    decode_context_s: float = 8.7e-8
    prefill_base_s: float = 0.0
    prefill_pair_s: float = 2.4e-9

    def decode_s(self, running: int) -> float:
        """Seconds of a decode step, without reading the context."""
        return self.decode_base_s + max(self.floor_s, self.step_base_s + self.token_s * running)

    def stretch_s(self, running: int, context: int, steps: int) -> float:
        """Seconds of `steps` decode steps.

        The first reads `context` tokens, each later one `running` more.
        """
        read = steps * context + running * (steps * (steps - 1) // 2)
        return steps * self.decode_s(running) + self.decode_context_s * read

    def steps_within(self, running: int, context: int, seconds: float) -> int:
        """Whole decode steps that end within `seconds`."""
        half = self.decode_context_s * running / 2
        linear = self.decode_s(running) + self.decode_context_s * context - half
        if linear <= 0:
            return 0
        steps = int(2 * seconds / (linear + sqrt(linear * linear + 4 * half * seconds)))
        while steps and self.stretch_s(running, context, steps) > seconds:
            steps -= 1  # the root was rounded up
        return steps

    def mixed_s(self, chunks: list[tuple[int, int]], running: int, context: int) -> float:
        """Seconds of a step that prefills `chunks` of (tokens, earlier prefix) and decodes besides."""
        tokens = sum(count for count, _ in chunks)
        pairs = sum(count * (count + 2 * prefix) for count, prefix in chunks)
        attention = self.prefill_base_s + self.prefill_pair_s * pairs
        if running:
            attention += self.decode_base_s + self.decode_context_s * context
        return attention + max(self.floor_s, self.step_base_s + self.token_s * (tokens + running))


def blocks(tokens: int) -> int:
    """The number of blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK)
