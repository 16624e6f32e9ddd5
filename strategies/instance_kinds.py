"""Groups instances that are equally fast, so that the reports of all of them teach one cost model.

Invariants: every instance is of one kind, and a kind has one fit; nothing is random and no clock is read.
Why: a fit of each instance from its own reports differs from the next by the noise of both, and routing sends
more work to whichever looks faster; on equal machines that costs throughput and gains nothing.

An instance is taken to be like the others until the median of its latest latencies says otherwise; then it
joins the kind that explains them, or founds one. So devices of several speeds, and one that slows down while
the run goes on, are still known by their own speed, in steps of about UNLIKE.
"""

from collections import deque
from math import log
from statistics import median

from protocol.messages import InstanceStatus
from strategies.cost_model import Coefficients, scaled, step_latency
from strategies.fitting import Interval, OnlineFit

EVIDENCE = 8  # intervals of an instance that decide whether it is like its kind
UNLIKE = 0.15  # log ratio of latencies from which on an instance leaves its kind
ALIKE = 0.08  # log ratio up to which another kind explains them
MAX_KINDS = 16  # that differ by UNLIKE: more than a factor of ten; then an instance joins the nearest


class _Member:
    """An instance: its kind, and what it reported since it was last looked at."""

    __slots__ = ("fit", "intervals")

    def __init__(self, fit: OnlineFit) -> None:
        self.fit = fit
        self.intervals: deque[Interval] = deque(maxlen=EVIDENCE)


class InstanceKinds:
    """The cost models of all instances, learned from their reports."""

    def __init__(self, start: Coefficients) -> None:
        """`start` holds until there is evidence."""
        self._kinds: list[OnlineFit] = [OnlineFit(start)]  # oldest first; one at least
        self._kinds[0].reporters = 0
        self._members: dict[int, _Member] = {}

    def join(self, number: int) -> OnlineFit:
        """Add an instance, at first with the most frequent kind. Returns the fit of that kind."""
        self.leave(number)
        fit = max(self._kinds, key=lambda kind: kind.reporters)
        fit.reporters += 1
        self._members[number] = _Member(fit)
        return fit

    def leave(self, number: int) -> None:
        """Remove an instance; what it taught stays. Harmless if it is not here."""
        if member := self._members.pop(number, None):
            self._leave_kind(member)

    def like(self, number: int) -> list[int]:
        """All instances of this one's kind."""
        fit = self._members[number].fit
        return [other for other, member in self._members.items() if member.fit is fit]

    def observe(self, number: int, before: InstanceStatus, after: InstanceStatus) -> OnlineFit:
        """Learn from two successive reports of one instance.

        Returns the fit of its kind, which may be another one from now on.
        """
        member = self._members[number]
        interval = member.fit.observe(before, after)
        if interval is not None:
            member.intervals.append(interval)
            if len(member.intervals) == EVIDENCE:
                self._look_at(member)
                member.intervals.clear()
        return member.fit

    def _look_at(self, member: _Member) -> None:
        """Move an instance to the kind that explains its latencies."""
        own = _miss(member.fit, member.intervals)
        others = [kind for kind in self._kinds if kind is not member.fit]
        if abs(own) <= UNLIKE:
            older = others[: self._kinds.index(member.fit)]  # two kinds that have become alike are one again
            alike = [kind for kind in older if abs(_miss(kind, member.intervals)) <= ALIKE]
            if alike:
                self._move(member, alike[0])
            return
        misses = [(abs(_miss(kind, member.intervals)), index) for index, kind in enumerate(others)]
        nearest, index = min(misses, default=(UNLIKE, 0))
        if nearest <= ALIKE or len(self._kinds) >= MAX_KINDS:
            if nearest < abs(own):
                self._move(member, others[index])
        elif member.fit.reporters > 1:  # the fit of an instance alone in its kind follows it
            ratio = median([i.latency / step_latency(member.fit.coefficients, i.running, i.tokens)
                            for i in member.intervals])  # fmt: skip
            kind = OnlineFit(scaled(member.fit.coefficients, decode=ratio, prefill=1.0))
            kind.reporters = 0
            self._kinds.append(kind)
            self._move(member, kind)

    def _move(self, member: _Member, kind: OnlineFit) -> None:
        self._leave_kind(member)
        member.fit = kind
        kind.reporters += 1

    def _leave_kind(self, member: _Member) -> None:
        member.fit.reporters -= 1
        if not member.fit.reporters and len(self._kinds) > 1:
            self._kinds.remove(member.fit)


def _miss(fit: OnlineFit, intervals: deque[Interval]) -> float:
    """Log of how much longer steps took than the fit predicts, the median."""
    c = fit.coefficients
    return median([log(i.latency / step_latency(c, i.running, i.tokens)) for i in intervals])
