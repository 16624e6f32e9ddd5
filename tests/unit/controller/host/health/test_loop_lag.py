"""How late a loop comes: a share of the lags is a share of the time, and old ones are forgotten."""

import asyncio

import pytest

from controller.host.health.loop_lag import MOST, PERIOD_S, WINDOW_S, Lag, Lags, LoopLag

LIMIT_S = 30.0


def on_time(lags, count, *, late_s=0.0):
    for _ in range(count):
        lags.come(lags.due + late_s)


def test_a_loop_that_is_on_time_has_no_lag():
    lags = Lags(5.0)
    assert lags.figures() == Lag()
    on_time(lags, 10)
    assert lags.figures() == pytest.approx(Lag(0, 0, 0, 0, 10 * PERIOD_S))


def test_quantiles_are_those_of_the_lags():
    lags = Lags(0.0)
    for number in range(100):
        on_time(lags, 1, late_s=number / 2_000)
    found = lags.figures()
    assert found == pytest.approx(Lag(0.025, 0.0475, 0.0495, 0.0495, 100 * PERIOD_S))


def test_all_that_was_due_while_it_stood_still_was_late():
    lags = Lags(0.0)
    on_time(lags, 50)
    lags.come(lags.due + 49 * PERIOD_S)  # it comes to 50 at once
    found = lags.figures()
    assert found.window_s == pytest.approx(100 * PERIOD_S)
    assert found.max_s == pytest.approx(49 * PERIOD_S)
    assert found.p95_s == pytest.approx(45 * PERIOD_S), "a twentieth of this time was that late"
    assert found.p50_s == pytest.approx(0.0), "half of the time nothing was late"


def test_only_the_last_window_counts_however_long_it_stood_still():
    lags = Lags(0.0)
    lags.come(1e6)
    assert lags.figures().window_s == WINDOW_S
    assert lags.figures().p50_s > 1
    on_time(lags, MOST)
    assert lags.figures() == pytest.approx(Lag(0, 0, 0, 0, WINDOW_S), abs=1e-6)


def test_a_timer_that_comes_early_counts_nothing():
    lags = Lags(0.0)
    lags.come(lags.due - 0.001)
    assert lags.figures() == Lag()
    assert lags.due == pytest.approx(PERIOD_S)


async def test_it_measures_the_loop_that_runs_until_it_is_closed(monkeypatch):
    came, enough = [], asyncio.Event()

    def come(self, now):
        came.append(now)
        real(self, now)
        if len(came) == 3:
            enough.set()

    real = Lags.come
    monkeypatch.setattr(Lags, "come", come)
    lag = LoopLag()
    async with asyncio.timeout(LIMIT_S):
        await enough.wait()
    assert lag.figures().window_s >= 3 * PERIOD_S - 1e-6
    lag.close()
    assert lag._timer.cancelled()
