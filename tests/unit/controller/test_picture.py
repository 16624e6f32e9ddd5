"""Images that a copy of the process makes are those that it would make itself."""

import asyncio
import os

import pytest

from controller.durability.core_image import Freezer
from controller.durability.fork import IS_POSSIBLE, Picture
from controller.durability.snapshots import Snapshots
from tests.unit.controller.answered_run import AnsweredRun

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="a copy of the process is made on Linux only")


def run_of(tmp_path, events: int) -> AnsweredRun:
    run = AnsweredRun(tmp_path / "run.db", steps=6)
    run.store.close = lambda: None  # type: ignore[method-assign]  # it is used below
    run.to_the_end(max_events=events)
    return run


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def has_no_child() -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_image_is_of_the_moment_of_the_fork_and_nothing_is_left(tmp_path):
    run = run_of(tmp_path, 60)
    expected, before = Freezer().freeze(run.core), descriptors()
    picture = Picture(run.core)
    run.to_the_end(max_events=90)
    assert picture.wait() == expected != Freezer().freeze(run.core)
    assert descriptors() == before
    has_no_child()


def test_what_no_image_can_hold_gives_none(tmp_path):
    run = run_of(tmp_path, 60)
    run.core.surprise = object()  # type: ignore[attr-defined]
    assert Picture(run.core).wait() == b""


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
    assert db.execute("SELECT seq, image FROM snapshots").fetchall() == [(60, Freezer().freeze(run.core))]
    assert db.execute("SELECT step FROM lines").fetchall() == [(1,)]


async def test_one_that_is_given_up_leaves_no_process(tmp_path):
    run = run_of(tmp_path, 60)
    made = Snapshots(run.store, is_compact=False)
    made.begin(run.core, number=60, now=run.now, on_image=lambda image: None)
    made.close()
    has_no_child()
