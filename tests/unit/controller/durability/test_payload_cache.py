"""What is in memory of groups: filled where it is, not where it was; reports hand each part over once."""

from controller.durability.payload_cache import Held, Newest, Pool, ReportSeries
from tests.unit.controller.durability.test_store import floats, ints

KEY = (1, 0, 0)  # group, member, attempt


def test_what_is_added_to_a_group_is_added_to_the_one_that_is_there():
    pool = Pool(1 << 20)
    pool.add(1, Held())
    pair = pool.response(KEY)
    assert pair is not None
    pair[0].extend(b"gone")
    pool.take(1)
    assert pool.response(KEY) is None
    pool.add(1, Held())
    again = pool.response(KEY)
    assert again is not None
    again[0].extend(b"here")
    assert pool.groups[1].responses[0, 0][0] == b"here"


def test_a_group_that_has_moved_is_filled_where_it_went():
    live, other = Pool(1 << 20), Pool(1 << 20)
    live.add(1, Held())
    live.response(KEY)
    live.move(1, other)
    assert live.response(KEY) is None
    pair = other.response(KEY)
    assert pair is not None
    pair[0].extend(b"here")
    assert other.groups[1].responses[0, 0][0] == b"here"


def take(reports: ReportSeries, *deltas: tuple[int, int, int, int], first: int) -> list[int]:
    """A report of (group, member, start, count), whose tokens are numbered from `first` on."""
    groups, members, starts, counts = zip(*deltas, strict=True)
    tokens = range(first, first + sum(counts))
    columns = (groups, members, (1,) * len(groups), starts, counts)
    return reports.take(columns, ints(*tokens), floats(*(-float(token) for token in tokens)))


def test_parts_of_a_response_are_joined_where_they_go_on():
    reports = ReportSeries()
    assert take(reports, (7, 0, 0, 2), (8, 1, 3, 1), first=10) == [7, 8]
    assert take(reports, (7, 0, 2, 1), (8, 1, 4, 2), first=20) == []
    assert take(reports, (8, 1, 6, 1), (9, 0, 0, 1), first=30) == [9]
    assert list(reports.close()) == [
        ((7, 0, 1), 0, ints(10, 11, 20), floats(-10, -11, -20)),
        ((8, 1, 1), 3, ints(12, 21, 22, 30), floats(-12, -21, -22, -30)),
        ((9, 0, 1), 0, ints(31), floats(-31)),
    ]
    assert (reports.deltas, reports.is_open, reports.size_bytes) == (0, False, 0)


def test_what_was_said_twice_or_has_a_hole_is_not_joined():
    for start in (0, 3):
        reports = ReportSeries()
        take(reports, (7, 0, 0, 2), first=10)
        take(reports, (7, 0, start, 2), first=20)
        assert [part[1:3] for part in reports.close()] == [(0, ints(10, 11)), (start, ints(20, 21))]


def test_what_was_handed_over_is_not_handed_over_again():
    reports = ReportSeries()
    take(reports, (7, 0, 0, 1), (7, 1, 0, 1), (8, 0, 0, 1), (7, 0, 1, 2), first=10)
    take(reports, (7, 0, 3, 1), (7, 1, 1, 1), first=20)
    assert [part[:3] for part in reports.of_response((7, 0, 1))] == [
        ((7, 0, 1), 0, ints(10)), ((7, 0, 1), 1, ints(13, 14)), ((7, 0, 1), 3, ints(20)),
    ]  # fmt: skip
    assert list(reports.of_response((7, 0, 1))) == []
    assert take(reports, (7, 0, 4, 1), first=30) == [7]
    assert [part[:3] for part in reports.of_group(7)] == [
        ((7, 1, 1), 0, ints(11)), ((7, 1, 1), 1, ints(21)), ((7, 0, 1), 4, ints(30)),
    ]  # fmt: skip
    assert [part[:3] for part in reports.close()] == [((8, 0, 1), 0, ints(12))]


def test_a_group_is_gathered_from_all_workers_and_forgotten_where_nobody_wants_it():
    newest = Newest()
    for source, first in (("a", 10), ("b", 20)):
        reports = newest.of(source)
        take(reports, (7, first, 0, 1), (8, first, 0, 1), first=first)
        assert [newest.note(group, reports) for group in (7, 8, 7)] == [True, True, False]
    assert [part[0] for part in newest.gather(7)] == [(7, 10, 1), (7, 20, 1)]
    assert list(newest.gather(7)) == []
    newest.forget(8)
    assert [*newest.gather(8), *newest.close("a"), *newest.close("b"), *newest.close("c")] == []
    assert newest.of("a") is newest.of("a") is not newest.of("b")
    assert newest.note(9, newest.of("a"))
    assert list(newest.close("a")) == []
    assert newest._of_group == {}
