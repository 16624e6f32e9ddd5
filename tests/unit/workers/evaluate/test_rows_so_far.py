"""A line of progress now and then."""

from workers.evaluate.rows_so_far import EVERY_S, RowsSoFar


def test_a_line_every_ten_seconds_and_none_before():
    told, now = [], [0.0]
    rows = RowsSoFar(9, told.append, lambda: now[0])
    rows.count([1.0, 0.0])
    now[0] = EVERY_S - 1
    rows.count(None)
    assert not told
    now[0] = EVERY_S
    rows.count([1.0, 1.0])
    now[0] += 1
    rows.count([1.0])
    assert told == ["3 of 9 rows, 1 failed, mean reward 0.750."]


def test_nothing_but_failures_has_no_mean():
    told, now = [], [0.0]
    rows = RowsSoFar(2, told.append, lambda: now[0])
    now[0] = 60.0
    rows.count(None)
    assert told == ["1 of 2 rows, 1 failed."]
