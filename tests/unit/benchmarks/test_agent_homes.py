"""The grid of homes: what is compared with what, and the verdict."""

import pytest

from benchmarks.agent_homes import Cell, config_for, run, told


@pytest.fixture(scope="module")
def runs():
    return {way: run(config_for(0.6, 1, 3, way), 0) for way in ("price", "always", "never")}


def test_where_the_price_sends_no_turn_away_always_home_is_the_same_run(runs):
    (price, departures), (always, _) = runs["price"], runs["always"]
    assert departures.turns > 100
    assert departures.left == 0
    assert price.starts == always.starts


def test_turns_that_do_not_know_their_homes_leave_them(runs):
    never, departures = runs["never"]
    assert departures.left > departures.turns / 2
    assert never.starts != runs["price"][0].starts


def cell(share=0.6, price=(3.0, 3.0), always=(3.0, 3.0), never=(2.0, 2.0), limit=3.2):
    speeds = {"price": [*price], "always": [*always], "never": [*never]}
    prefilled = {way: [1.0, 1.0] for way in speeds}
    return Cell(share, 2, limit, 3.0, speeds, prefilled, [0.0, 0.002])


def test_a_cell_is_won_by_the_mean_of_the_ratios_of_equal_seeds():
    assert cell(price=(2.98, 2.98)).is_won
    assert not cell(price=(2.96, 2.96)).is_won
    assert not cell(never=(3.2, 3.2)).is_won
    assert cell(price=(2.0, 4.0), always=(2.0, 4.0)).ratios("always") == [1.0, 1.0]


def test_the_verdict_counts_won_cells_and_those_near_the_bound():
    lines = list(told(iter([cell(), cell(never=(3.2, 3.2)), cell(limit=4.0), cell(share=0.3, limit=4.0)])))
    assert "1.000 ±0.000" in lines[1]
    assert lines[-2:] == [
        "At least as fast as both, within 1%: 3 of 4 cells.",
        "At least 90% of the bound, waiting 0.6: 2 of 3 cells.",
    ]
