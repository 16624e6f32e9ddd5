"""The controller says of its own loop and disk what a person should look at, and does not waver."""

import shutil
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.host.health.loop_lag import WINDOW_S, Lag
from controller.host.health.own_health import OwnAlarms, OwnHealth
from controller.host.run_directory import RunDirectory
from protocol.wire.server import Server

GB = 10**9
Usage = namedtuple("Usage", "total used free")


def late(p95_s, window_s=WINDOW_S):
    return Lag(0.001, p95_s, p95_s, 2 * p95_s, window_s)


def seen(*looks):
    """The names after each look at (lag, free bytes)."""
    alarms = OwnAlarms()
    return [[alarm.name for alarm in alarms.look(lag, free, where="/runs/a")] for lag, free in looks]


def test_a_disk_that_fills_is_named_and_stays_so_until_there_is_clearly_room():
    room = [5.1, 4.9, 5.1, 5.9, 6.1, 5.1]
    names = seen(*((Lag(), int(free * GB)) for free in room))
    assert names == [[], ["disk"], ["disk"], ["disk"], [], []]


def test_a_disk_that_does_not_tell_is_left_alone():
    assert seen((Lag(), None)) == [[]]


def test_a_loop_that_comes_late_for_a_twentieth_of_a_minute_is_named_until_it_is_in_time_again():
    names = seen(*((late(p95_s), None) for p95_s in (0.9, 1.1, 0.9, 0.6, 0.4, 0.9)))
    assert names == [[], ["slow loop"], ["slow loop"], ["slow loop"], [], []]


def test_a_start_is_no_alarm_however_late_the_loop_comes():
    assert seen((late(30.0, WINDOW_S - 1), None)) == [[]]


def test_each_has_owner_evidence_and_remedy():
    disk, loop = OwnAlarms().look(late(1.25), 3 * GB, where="/runs/a")
    assert disk.in_words() == (
        "disk (controller): 3.0 GB are free on the disk of /runs/a. Free some before it is full, which ends "
        "the run, or lower trainer.keep_checkpoints."
    )
    assert loop.evidence == "its event loop comes 1.2 s late for 5 % of the last 60 s, 2.5 s at most"
    assert loop.owner == "controller"


def removed(endpoint):
    socket = Path(endpoint.removeprefix("ipc://"))
    socket.unlink()
    return socket


async def test_a_socket_that_was_removed_is_named_with_what_it_means(tmp_path):
    directory = RunDirectory(Config.model_validate({"run": {"dir": str(tmp_path)}}))
    core = Core(Config(), load_strategies(Config()))
    with closing(directory), OwnHealth(directory.path, lambda: core, directory.lost_socket) as health:
        endpoint = directory.endpoint("auto")
        with closing(Server(endpoint, on_message=print, on_fault=print, on_drained=print)):
            assert "socket" not in [alarm.name for alarm in health.look()[1]]
            socket = removed(endpoint)
            (alarm,) = [alarm for alarm in health.look()[1] if alarm.name == "socket"]
    assert alarm.in_words() == (
        f"socket (controller): {socket}, where workers attach, was removed. Attached workers go on, but no "
        f"other can attach, and no order comes through. `launch.py stop {directory.path}` ends the run in "
        "good order, and the same command goes on."
    )


@pytest.mark.parametrize("bind", ["auto", "tcp://127.0.0.1:0"])
async def test_a_run_whose_folder_was_renamed_asks_for_its_name_back(tmp_path, bind):
    directory = RunDirectory(Config.model_validate({"run": {"dir": str(tmp_path)}}))
    core = Core(Config(), load_strategies(Config()))
    with closing(directory), OwnHealth(directory.path, lambda: core, directory.lost_socket) as health:
        directory.endpoint(bind)
        directory.path.rename(tmp_path / "other")
        (alarm,) = [alarm for alarm in health.look()[1] if alarm.name in ("folder", "socket")]
        (tmp_path / "other").rename(directory.path)
    assert alarm.in_words() == (
        f"folder (controller): {directory.path}, the run's folder, was removed or renamed. Give it its name "
        "back: else the run ends as soon as it is to write of a step."
    )


@pytest.mark.parametrize(("bind", "is_file"), [("tcp://127.0.0.1:0", False), ("ipc://FOLDER/here", True)])
def test_a_socket_of_ones_own_is_looked_for_where_it_is_a_file(tmp_path, bind, is_file):
    with closing(RunDirectory(Config.model_validate({"run": {"dir": str(tmp_path)}}))) as directory:
        directory.endpoint(bind.replace("FOLDER", str(tmp_path)))
        assert directory.lost_socket() == (tmp_path / "here" if is_file else None)


async def test_what_a_run_says_of_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10 * GB, 9 * GB, 1 * GB))
    with OwnHealth(tmp_path, lambda: Core(Config(), load_strategies(Config()))) as health:
        figures, alarms = health.look()
        assert [alarm.name for alarm in alarms] == ["disk"]
        assert figures["disk_free_mb"] == 953
        assert figures["loop_lag_window_s"] == 0
        assert {"loop_lag_p50_s", "loop_lag_p99_s", "loop_lag_max_s"} <= figures.keys()

        def gone(path):
            raise FileNotFoundError(path)

        monkeypatch.setattr(shutil, "disk_usage", gone)
        figures, alarms = health.look()
        assert figures["disk_free_mb"] is None
        assert alarms == []
