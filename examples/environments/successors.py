"""The task of `digits.py` as a taskset of verifiers: a prompt, a reward and a metric."""

from collections.abc import Iterable

import verifiers.v1 as vf
from digits import DIGITS, successor


class SuccessorData(vf.TaskData):
    """One task."""

    answer: str


class Successor(vf.Task[SuccessorData]):
    """Which digit follows?"""

    @vf.reward
    async def right(self, task: SuccessorData, trace: vf.Trace) -> float:
        """1 for the digit itself."""
        return float((trace.last_reply or "") == task.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        """Characters of the answer."""
        return float(len(trace.last_reply or ""))


class SuccessorsConfig(vf.TasksetConfig):
    """Of the taskset."""

    digits: str = DIGITS
    """To ask for."""


class Successors(vf.Taskset[Successor, SuccessorsConfig]):
    """A task for each digit."""

    def load(self) -> Iterable[Successor]:
        """All tasks."""
        for digit in self.config.digits:
            data = SuccessorData(prompt=digit, answer=successor(digit))
            yield Successor(data, self.config.task)


__all__ = ["Successors"]
