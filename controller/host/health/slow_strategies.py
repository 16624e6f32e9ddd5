"""Measures how long the user's strategies take, in the live shell.

Invariants: measuring does not change what a strategy returns; built-in strategies are not measured; time
before the first look does not count, such as while a run is resumed; an alarm is raised beyond one limit and
withdrawn below a lower one.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from controller.core.core import Core
from controller.core.state.views.snapshot import Alarm
from controller.host.health.loop_lag import WINDOW_S
from protocol.blame import where
from strategies.kinds import Strategies, key_of
from strategies.routing import Routing

KINDS = {
    "route": "routing", "admit": "admission", "migrate": "migration", "synchronize": "synchronization",
    "keep": "filter", "schedule": "schedule", "adapt": "pacing", "sample": "sampler",
    "credit": "turn_advantages",
}  # fmt: skip
"""Field of Strategies -> key of the configuration."""
SLOW, FAST = 0.1, 0.05  # shares of the window, in the controller's only thread
LOOKS_S = 1.0  # least time between two remembered looks


@dataclass(slots=True)
class Spent:
    """Time that one strategy has taken."""

    key: str
    where: str
    seconds: float = 0.0
    calls: int = 0
    is_slow: bool = False

    def add(self, seconds: float) -> None:
        """Count a call."""
        self.seconds += seconds
        self.calls += 1


class SlowStrategies:
    """The user's strategies of one run."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._timed: Strategies | None = None
        self._spent: dict[str, Spent] = {}
        self._before: deque[tuple[float, dict[str, tuple[float, int]]]] = deque()

    def follow(self, core: Core) -> None:
        """Measure the strategies of this core, which may have replaced an earlier one."""
        if core.state.strategies is not self._timed:
            self._timed = core.state.strategies = self._with_clock(core.state.strategies)

    def look(self) -> list[Alarm]:
        """Alarms that hold."""
        now = self._clock()
        known = {key: (spent.seconds, spent.calls) for key, spent in self._spent.items()}
        if not self._before or now - self._before[-1][0] >= LOOKS_S:
            self._before.append((now, known))
        while len(self._before) > 1 and self._before[1][0] <= now - WINDOW_S:
            self._before.popleft()
        since, base = self._before[0]
        found: list[Alarm] = []
        for key, spent in self._spent.items():
            seconds, calls = base.get(key, (0.0, 0))
            share = (spent.seconds - seconds) / max(now - since, WINDOW_S)
            spent.is_slow = share > (FAST if spent.is_slow else SLOW)
            if spent.is_slow:
                found.append(_alarm(spent, spent.seconds - seconds, spent.calls - calls, now - since))
        return found

    def _with_clock(self, strategies: Strategies) -> Strategies:
        timed: dict[str, Any] = {}
        for field, kind in KINDS.items():
            strategy = getattr(strategies, field)
            choose = strategy.choose if isinstance(strategy, Routing) else strategy
            if not hasattr(choose, "__wrapped__"):  # built in
                continue
            spent = self._spent.setdefault(field, Spent(key_of(kind), where(choose)))
            timed[field] = self._measured(choose, spent)
            if isinstance(strategy, Routing):
                order = strategy.order and self._measured(strategy.order, spent)
                timed[field] = replace(strategy, choose=timed[field], order=order)
        return replace(strategies, **timed)

    def _measured(self, function: Callable[..., Any], spent: Spent) -> Callable[..., Any]:
        clock = self._clock

        @wraps(function)
        def decide(*arguments: Any) -> Any:
            began = clock()
            try:
                return function(*arguments)
            finally:
                spent.add(clock() - began)

        return decide


def _alarm(spent: Spent, seconds: float, calls: int, window_s: float) -> Alarm:
    evidence = f"{spent.where} took {seconds:.1f} s of the last {window_s:.0f} s, in {calls} calls"
    remedy = (
        f"While it is asked, the controller does nothing else. Expected less than {SLOW:.0%} of the time: "
        "make it faster."
    )
    return Alarm("slow strategy", spent.key, evidence, remedy)
