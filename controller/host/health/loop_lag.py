"""Lag of the controller's event loop.

Invariants: there is one lag for each PERIOD_S, also while the loop stands still, so a share of the lags is a
share of the time; one window is remembered.
"""

import asyncio
import time
from collections import deque
from typing import NamedTuple

PERIOD_S = 0.25  # a wake-up takes 0.1 ms of a busy machine at most: 0.04 % of the loop
WINDOW_S = 60.0
MOST = round(WINDOW_S / PERIOD_S)


class Lag(NamedTuple):
    """Quantiles of the lag in the last window."""

    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    window_s: float = 0.0  # length of the window: less than WINDOW_S at first


class Lags:
    """The lags of one window; pure."""

    def __init__(self, now: float) -> None:
        self.due = now + PERIOD_S
        """When the next wake-up is due."""
        self._lags: deque[float] = deque(maxlen=MOST)

    def come(self, now: float) -> None:
        """The loop woke up: note the lags of all wake-ups that were due."""
        missed = int((now - self.due) / PERIOD_S) + 1 if now >= self.due else 0
        for number in range(max(0, missed - MOST), missed):
            self._lags.append(now - self.due - number * PERIOD_S)
        self.due += missed * PERIOD_S

    def figures(self) -> Lag:
        """Quantiles by nearest rank."""
        lags = sorted(self._lags)
        if not lags:
            return Lag()
        p50, p95, p99 = (lags[min(len(lags) - 1, int(share * len(lags)))] for share in (0.5, 0.95, 0.99))
        return Lag(p50, p95, p99, lags[-1], round(len(lags) * PERIOD_S, 3))


class LoopLag:
    """Measures the running loop until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lags = Lags(time.monotonic())
        self._timer = self._loop.call_later(PERIOD_S, self._come)

    def figures(self) -> Lag:
        """Lags of the last window."""
        return self._lags.figures()

    def close(self) -> None:
        """Stop measuring."""
        self._timer.cancel()

    def _come(self) -> None:
        now = time.monotonic()
        self._lags.come(now)
        self._timer = self._loop.call_later(max(0.0, self._lags.due - now), self._come)
