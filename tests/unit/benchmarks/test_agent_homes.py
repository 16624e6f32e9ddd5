"""The grid of homes: what is compared with what, and the verdict."""

import pytest

from benchmarks.agent_homes import Cell, config_for, run, told


@pytest.fixture(scope="module")
def runs():
    return {way: run(config_for(0.6, 1, 4, way), 0, 2) for way in ("price", "always", "never")}


def test_where_the_price_sends_no_turn_away_always_home_is_the_same_run(runs):
    (price, departures, share), (always, _, same) = runs["price"], runs["always"]
    assert departures.turns > 100
    assert departures.left == 0
    assert price.starts == always.starts
    assert 0.3 < share == same < 1


def test_turns_that_do_not_know_their_homes_leave_them(runs):
    never, departures, _ = runs["never"]
    assert departures.left > departures.turns / 2
    assert never.starts != runs["price"][0].starts


def cell(share=0.6, price=(3.0, 3.0), always=(3.0, 3.0), never=(2.0, 2.0), of_bound=(0.96, 0.86)):
    speeds = {"price": [*price], "always": [*always], "never": [*never]}
    prefilled = {way: [1.0, 1.0] for way in speeds}
    return Cell(share, 2, 3.0, speeds, prefilled, [0.0, 0.002], [*of_bound])


def test_a_cell_is_won_by_the_mean_of_the_ratios_of_equal_seeds():
    assert cell(price=(2.98, 2.98)).is_won
    assert not cell(price=(2.96, 2.96)).is_won
    assert not cell(never=(3.2, 3.2)).is_won
    assert cell(price=(2.0, 4.0), always=(2.0, 4.0)).ratios("always") == [1.0, 1.0]


def test_the_verdict_counts_won_cells_and_those_near_the_bound():
    cells = [cell(), cell(never=(3.2, 3.2)), cell(of_bound=(0.8, 0.99)), cell(share=0.3, of_bound=(0.8, 0.8))]
    lines = list(told(iter(cells)))
    assert "1.000 ±0.000" in lines[1]
    assert lines[-2:] == [
        "At least as fast as both, within 1%: 3 of 4 cells.",
        "At least 90% of the bound, waiting 0.6: 2 of 3 cells.",
    ]
