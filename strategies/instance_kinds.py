"""Groups similar instances into kinds, so that the reports of all of them teach one cost model.

Invariants: every instance is of one kind, and a kind has one fit; nothing is random and no clock is read.
Reason: fits of single instances differ by the noise of their reports, and routing sends more work to
instances that look faster; on equal machines that costs throughput and gains nothing.

A new instance counts as similar to the others until the median of its latest latencies shows otherwise; then
it joins the kind that explains them, or founds one. So devices of several speeds, and a device that slows
down during the run, are still known by their own speed, in steps of about UNLIKE.
"""

from collections import deque
from math import log
from statistics import median

from protocol.messages import InstanceStatus
from strategies.cost_model import Coefficients, scaled, step_latency
from strategies.fitting import Interval, OnlineFit

EVIDENCE = 8  # intervals of an instance from which its kind is decided
UNLIKE = 0.15  # log ratio of latencies from which an instance leaves its kind
ALIKE = 0.08  # and up to which another kind explains them
MAX_KINDS = 16  # that differ by UNLIKE: more than a factor of ten; then an instance joins the nearest


class _Member:
    """An instance: its kind, and its intervals since the last decision."""

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
        """Add an instance to the most frequent kind; returns the fit of that kind."""
        self.leave(number)
        fit = max(self._kinds, key=lambda kind: kind.reporters)
        fit.reporters += 1
        self._members[number] = _Member(fit)
        return fit

    def leave(self, number: int) -> None:
        """Remove an instance; what its reports taught stays. Unknown instances are ignored."""
        if member := self._members.pop(number, None):
            self._leave_kind(member)

    def like(self, number: int) -> list[int]:
        """All instances of this one's kind."""
        fit = self._members[number].fit
        return [other for other, member in self._members.items() if member.fit is fit]

    def observe(self, number: int, before: InstanceStatus, after: InstanceStatus) -> OnlineFit:
        """Learn from two successive reports of one instance.

        Returns the fit of its kind; the instance may have changed its kind.
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
            older = others[: self._kinds.index(member.fit)]  # two kinds that have become alike are merged
            alike = [kind for kind in older if abs(_miss(kind, member.intervals)) <= ALIKE]
            if alike:
                self._move(member, alike[0])
            return
        misses = [(abs(_miss(kind, member.intervals)), index) for index, kind in enumerate(others)]
        nearest, index = min(misses, default=(UNLIKE, 0))
        if nearest <= ALIKE or len(self._kinds) >= MAX_KINDS:
            if nearest < abs(own):
                self._move(member, others[index])
        elif member.fit.reporters > 1:  # an instance that is alone is its kind: the fit follows it
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
    """The median log ratio of step latencies to the fit's predictions."""
    c = fit.coefficients
    return median([log(i.latency / step_latency(c, i.running, i.tokens)) for i in intervals])
