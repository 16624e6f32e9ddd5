"""status.json is written on news and now and then; complaints are passed on; a full disk ends no run."""

import json
from dataclasses import replace

import pytest

from controller.config.models import Config
from controller.core.state.views.snapshot import Alarm, WorkerSnapshot
from controller.host.status_file import AGAIN_S, SHARE, WRITE_S, StatusFile, pause_after
from controller.host.watchdog import MOST_WAITS
from controller.simulation import Simulation


class Directory:
    """Keeps what was written; full once it is told so."""

    def __init__(self) -> None:
        self.written, self.is_full = [], False

    def write_status(self, status):
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written.append(json.loads(status))


def status_file(complaints, **more):
    config = Config.model_validate(
        {"run": {"steps": 5}, "trainer": {"batch_groups": 3}, "staleness": {"max_staleness": 1}}
    )
    directory = Directory()
    return directory, StatusFile(directory, config, on_complaint=complaints.append, **more)


def seen():
    return Simulation(Config(), seed=0).core.snapshot()


def test_it_is_written_when_something_has_changed_and_every_few_seconds():
    directory, file = status_file([])
    file.look(seen(), 0.0)
    file.look(seen(), 1.0)
    assert len(directory.written) == 1
    file.look(seen(), WRITE_S)
    assert len(directory.written) == 2
    told = directory.written[0]
    assert (told["steps_wanted"], told["batch_groups"], told["staleness/max_allowed"]) == (5, 3, 1)


def test_it_says_how_fast_the_last_step_was():
    directory, file = status_file([])
    file.write_last(seen)
    file.note_step({"throughput/tokens_per_s": 12.34})
    file.write_last(seen)
    assert [status["tokens_per_s"] for status in directory.written] == [None, 12.3]


def test_what_takes_too_long_is_complained_of():
    complaints = []
    _, file = status_file(complaints)
    for second in range(200):
        file.look(seen(), float(second))
    assert complaints
    assert "has waited 181 s" in complaints[0]


def test_a_disk_that_refuses_it_is_named_in_the_log(caplog):
    directory, file = status_file([])
    directory.is_full = True
    file.look(seen(), 0.0)
    assert "status.json was not written: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize(("spent_s", "pause_s"), [(0.0, 1.0), (0.004, 1.0), (0.02, 5.0), (0.5, 10.0)])
def test_looks_come_so_seldom_that_they_take_less_than_a_hundredth(spent_s, pause_s):
    assert pause_after(spent_s) == pytest.approx(pause_s)


def test_a_look_says_when_the_next_one_is(monkeypatch):
    times = iter((3.0, 3.02))
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    directory, file = status_file([])
    core = Simulation(Config(), seed=0).core
    assert file.watch(core.snapshot_in_slices, 0.0) == pytest.approx(5.0)
    assert len(directory.written) == 1


class Many:
    """A run with many workers, whose look is made in slices."""

    def __init__(self, workers):
        self.seen, self.slices = seen(), 0
        rows = [
            WorkerSnapshot(f"rollout-{i}", "rollout", True, 3, i, 10, 0.1, "pulling version 4")
            for i in range(workers)
        ]
        self.seen = replace(self.seen, workers=tuple(rows))

    def __call__(self, workers):
        for _ in range(len(self.seen.workers) // workers):
            yield
        return self.seen


def test_a_look_at_many_workers_is_made_in_slices_and_says_the_same(monkeypatch):
    times = iter(range(1_000))
    monkeypatch.setattr("time.thread_time", lambda: next(times) / 1_000)
    directory, file = status_file([])
    run, pauses = Many(350), []
    while not pauses or not pauses[-1]:
        pauses.append(file.watch(run, 0.0))
    assert len(pauses) == 3 + 1 + 3 + 1 + 4 + 1  # snapshot, watchdog, its sorting, file, end
    assert pauses[-1] == pytest.approx(len(pauses) / 1_000 / SHARE)  # by what all of them took
    at_once, other = status_file([])
    other.look(run.seen, 0.0)
    assert directory.written == at_once.written
    assert [row["name"] for row in directory.written[0]["workers"]] == [row.name for row in run.seen.workers]
    assert len(directory.written[0]["waits"]) == MOST_WAITS
    assert directory.written[0]["waits_left_out"] > 300


def test_a_look_that_is_broken_off_writes_nothing():
    directory, file = status_file([])
    assert file.watch(Many(350), 0.0) == 0.0
    assert directory.written == []


DISK = Alarm("disk", "controller", "3 GB are free", "Free some.")
STORM = Alarm("respawn storm", "workers", "9 respawns", "Read a log.")


def test_an_alarm_is_written_at_once_and_complained_of_once_an_hour():
    complaints, own = [], []
    directory, file = status_file(complaints, own=lambda: ({"loop_lag_p99_s": 0.25}, list(own)))
    file.look(seen(), 0.0)
    assert directory.written[-1]["alarms"] == complaints == []
    assert directory.written[-1]["controller"] == {"loop_lag_p99_s": 0.25}
    own.append(DISK)
    file.look(replace(seen(), alarms=(STORM,)), 1.0)
    assert [alarm["name"] for alarm in directory.written[-1]["alarms"]] == ["disk", "respawn storm"]
    words = ["ALARM, disk (controller): 3 GB are free. Free some.",
             "ALARM, respawn storm (workers): 9 respawns. Read a log."]  # fmt: skip
    assert complaints == words
    own.clear()
    file.look(seen(), 2.0)
    assert directory.written[-1]["alarms"] == [], "it is said at once that they are over, too"
    own.append(DISK)
    file.look(seen(), AGAIN_S)
    assert complaints == words
    file.look(seen(), AGAIN_S + 1.0)
    assert [text for text in complaints if "ALARM" in text] == [*words, words[0]]


def test_a_core_that_cannot_be_looked_at_does_not_keep_the_run_from_its_end(caplog):
    directory, file = status_file([])

    def broken():
        raise KeyError("a peer that is gone")

    file.write_last(broken)
    assert directory.written == []
    assert "the core cannot be looked at" in caplog.text
