"""Snapshots of a live run: taken when due, with what the last turn came to; none after the end."""

import signal

import pytest

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.core.events import Started
from controller.durability import snapshots
from controller.durability.store import Store
from controller.host import snapshot_taker
from controller.host.snapshot_taker import SnapshotTaker
from controller.host.stepper import Stepper
from protocol.errors import RunError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "EVENTS", 1)
    config = Config.model_validate({"run": {"dir": str(tmp_path)}})
    store = Store(tmp_path / "run.db")
    core = Core(config, load_strategies(config), run_dir=str(tmp_path))
    yield config, store, Stepper(store, core, on_skip=print)
    store.close()


def taker(run, *, is_over=False, failures=None):
    config, store, _ = run
    failures = [] if failures is None else failures
    return SnapshotTaker(
        store, config.run, unsaved_events=0, is_over=lambda: is_over, on_failure=failures.append
    )


def saved(store):
    return store._db.execute("SELECT count(*) FROM snapshots").fetchone()[0]


def test_where_the_system_cannot_fork_it_is_taken_at_once(run, monkeypatch):
    monkeypatch.setattr(snapshot_taker, "CAN_BEGIN", False)
    _, store, stepper = run
    made = taker(run)
    made.after_turn(stepper, events=0, now=0.0)
    assert saved(store) == 0
    stepper.turn(0.0, [(Started(), ())])
    made.after_turn(stepper, events=1, now=0.0)
    assert saved(store) == 1
    assert stepper._digests == []


def test_where_the_end_of_a_child_is_not_told_it_is_taken_at_once(run):
    _, store, stepper = run
    made = taker(run)
    stepper.turn(0.0, [(Started(), ())])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        made.after_turn(stepper, events=1, now=0.0)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert saved(store) == 1


@pytest.mark.parametrize(("is_over", "count"), [(False, 1), (True, 0)])
def test_one_that_was_begun_is_written_unless_the_run_is_over(run, monkeypatch, is_over, count):
    _, store, stepper = run
    images, made = [], taker(run, is_over=is_over)
    real = made._snapshots
    monkeypatch.setattr(snapshot_taker, "CAN_BEGIN", True)
    monkeypatch.setattr(real, "begin", lambda core, *, number, now, on_image: images.append(on_image))
    real._begun = (1, 0.0, 0.0, [])
    stepper.turn(0.0, [(Started(), ())])
    made.after_turn(stepper, events=1, now=0.0)
    (on_image,) = images
    on_image(b"an image")
    assert saved(store) == count
    assert (stepper._digests == []) == (not is_over)


def test_a_disk_that_refuses_one_is_told(run, monkeypatch):
    _, _, stepper = run
    images, failures = [], []
    made = taker(run, failures=failures)
    monkeypatch.setattr(snapshot_taker, "CAN_BEGIN", True)
    monkeypatch.setattr(
        made._snapshots, "begin", lambda core, *, number, now, on_image: images.append(on_image)
    )

    def full(image):
        raise RunError("No space left on device")

    monkeypatch.setattr(made._snapshots, "finish", full)
    stepper.turn(0.0, [(Started(), ())])
    made.after_turn(stepper, events=1, now=0.0)
    images[0](b"an image")
    assert [str(error) for error in failures] == ["No space left on device"]
