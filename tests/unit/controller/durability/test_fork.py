"""Images that a copy of the process makes are those that it would make itself."""

import asyncio
import os
from types import SimpleNamespace

import psutil
import pytest

from controller.durability import snapshots
from controller.durability.fork import IS_POSSIBLE, Picture
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack, unpack
from controller.durability.snapshots import CHECK_S, Snapshots
from protocol.errors import RunError
from tests.support.answered_run import AnsweredRun

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="a copy of the process is made on Linux only")


def run_of(tmp_path, events: int) -> AnsweredRun:
    run = AnsweredRun(tmp_path / "run.db", steps=6)
    run.store.close = lambda: None  # type: ignore[method-assign]  # it is used below
    run.to_the_end(max_events=events)
    return run


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    """Of this process, among which may be those of other tests."""
    return {child.pid for child in psutil.Process().children()}


def test_the_image_is_of_the_moment_of_the_fork_and_nothing_is_left(tmp_path):
    run = run_of(tmp_path, 60)
    expected, before, others = Freezer().freeze(run.core), descriptors(), children()
    picture = Picture(run.core)
    run.to_the_end(max_events=90)
    assert unpack(picture.wait()) == expected != Freezer().freeze(run.core)
    assert descriptors() <= before
    assert children() <= others


def test_what_no_image_can_hold_gives_none(tmp_path):
    run = run_of(tmp_path, 60)
    run.core.surprise = object()  # type: ignore[attr-defined]
    assert Picture(run.core).wait() == b""


def test_a_core_that_breaks_an_invariant_is_named_in_place_of_its_image(tmp_path):
    run = run_of(tmp_path, 60)
    run.core.state.accounts.generated += 1
    others = children()
    picture = Picture(run.core)
    assert picture.wait() == b""
    assert picture.violation.startswith("the token ledger does not close: TokenLedger(generated=")
    assert "invariants.py, line " in picture.violation
    assert children() <= others


async def test_a_run_whose_core_breaks_an_invariant_ends_and_keeps_the_snapshot_before(tmp_path):
    run = run_of(tmp_path, 60)
    made = Snapshots(run.store, is_compact=False)
    kept = []
    for broken in (0, 1):
        run.core.state.accounts.generated += broken
        arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        made.begin(run.core, number=60 + broken, now=run.now, on_image=arrived.set_result)
        image = await arrived
        if broken:
            with pytest.raises(RunError, match="after event 61: the token ledger does not close"):
                made.finish(image)
        else:
            with run.store.transaction():
                made.finish(image)
        kept.append(run.store._db.execute("SELECT seq FROM snapshots").fetchall())
    assert kept == [[(60,)], [(60,)]]


def test_a_core_is_checked_every_minute_in_which_anything_happens(tmp_path):
    run = run_of(tmp_path, 60)
    made = Snapshots(run.store, is_compact=False)
    assert not made.is_due(events=1, journal_bytes=1, now=CHECK_S - 1)
    assert made.is_due(events=0, journal_bytes=0, now=CHECK_S)
    with run.store.transaction():
        made.take(run.core, number=60, now=CHECK_S)
    assert not made.is_due(events=0, journal_bytes=0, now=1e6), "nothing has happened since"
    assert made.is_due(events=1, journal_bytes=1, now=1e6)
    run.core.state.accounts.generated += 1
    with pytest.raises(RunError, match="after event 61"):
        made.take(run.core, number=61, now=1e6)


async def test_a_snapshot_begun_is_written_once_with_its_lines_while_the_run_goes_on(tmp_path):
    run = run_of(tmp_path, 60)
    made = Snapshots(run.store, is_compact=False)
    made.add_line({"step": 1})
    arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    made.begin(run.core, number=60, now=run.now, on_image=arrived.set_result)
    made.add_line({"step": 2})
    assert not made.is_due(events=10**6, journal_bytes=0, now=1e9)
    image = await arrived
    with run.store.transaction():
        made.finish(image)
    assert made.is_due(events=0, journal_bytes=0, now=1e9)
    db = run.store._db
    assert db.execute("SELECT seq, image FROM snapshots").fetchall() == [
        (60, pack(Freezer().freeze(run.core)))
    ]
    assert db.execute("SELECT step FROM lines").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("moments", "pause_s", "rest_s"),
    [
        ((0.0, 0.125, 5.0, 5.25), 0.375, 52.5),  # a tenth of a core
        ((0.0, 0.5, 5.0, 6.0), 1.5, 150.0),  # a hundredth of the loop's time
    ],
)
async def test_one_made_beside_the_loop_takes_its_share(tmp_path, monkeypatch, moments, pause_s, rest_s):
    run = run_of(tmp_path, 60)
    made = Snapshots(run.store, is_compact=False)
    arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    clock = iter(moments)
    monkeypatch.setattr(snapshots, "time", SimpleNamespace(perf_counter=clock.__next__))
    made.begin(run.core, number=60, now=100.0, on_image=arrived.set_result)
    image = await arrived
    with run.store.transaction():
        made.finish(image)
    assert made.pause_s == pause_s
    assert not made.is_due(events=10**6, journal_bytes=0, now=99.9 + rest_s)
    assert made.is_due(events=0, journal_bytes=0, now=100.1 + rest_s)


async def test_one_that_is_given_up_leaves_no_process(tmp_path):
    run = run_of(tmp_path, 60)
    made, others = Snapshots(run.store, is_compact=False), children()
    made.begin(run.core, number=60, now=run.now, on_image=lambda image: None)
    made.close()
    assert children() <= others
