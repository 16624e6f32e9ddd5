"""status.json is written on news and now and then; complaints are passed on; a full disk ends no run."""

import json

import pytest

from controller.config.models import Config
from controller.host.status_file import WRITE_S, StatusFile, pause_after
from controller.simulation import Simulation


class Directory:
    """Keeps what was written; full once it is told so."""

    def __init__(self) -> None:
        self.written, self.is_full = [], False

    def write_status(self, status):
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written.append(json.loads(json.dumps(status)))


def status_file(complaints):
    config = Config.model_validate({"run": {"steps": 5}, "trainer": {"batch_groups": 3}})
    directory = Directory()
    return directory, StatusFile(directory, config, on_complaint=complaints.append)


def seen():
    return Simulation(Config(), seed=0).core.snapshot()


def test_it_is_written_when_something_has_changed_and_every_few_seconds():
    directory, file = status_file([])
    file.look(seen(), 0.0)
    file.look(seen(), 1.0)
    assert len(directory.written) == 1
    file.look(seen(), WRITE_S)
    assert len(directory.written) == 2
    assert (directory.written[0]["steps_wanted"], directory.written[0]["batch_groups"]) == (5, 3)


def test_it_says_how_fast_the_last_step_was():
    directory, file = status_file([])
    file.write(seen(), [])
    file.note_step({"throughput/tokens_per_s": 12.34})
    file.write(seen(), [])
    assert [status["tokens_per_s"] for status in directory.written] == [None, 12.3]


def test_what_takes_too_long_is_complained_of():
    complaints = []
    _, file = status_file(complaints)
    file.look(seen(), 0.0)
    file.look(seen(), 1e5)
    assert complaints
    assert "has waited 100000 s" in complaints[0]


def test_a_disk_that_refuses_it_is_named_in_the_log(caplog):
    directory, file = status_file([])
    directory.is_full = True
    file.look(seen(), 0.0)
    assert "status.json was not written: [Errno 28] No space left on device" in caplog.text


@pytest.mark.parametrize(("spent_s", "pause_s"), [(0.0, 1.0), (0.005, 1.0), (0.04, 5.0), (0.5, 10.0)])
def test_looks_come_so_seldom_that_they_take_less_than_a_hundredth(spent_s, pause_s):
    assert pause_after(spent_s) == pytest.approx(pause_s)


def test_a_look_says_when_the_next_one_is(monkeypatch):
    times = iter((3.0, 3.04))
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    directory, file = status_file([])
    assert file.watch(seen, 0.0) == pytest.approx(5.0)
    assert len(directory.written) == 1
