"""A run directory belongs to one controller, and an older run in it is never lost."""

import errno
import json
import logging
import os
import resource
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from controller.config.models import Config
from controller.durability.holder import controller_of
from controller.durability.store import Store
from controller.host.run_directory import MAX_SOCKET_PATH, RunDirectory
from protocol.errors import ConfigError, RunError
from protocol.segments import segment_directory, sweep, this_host
from protocol.settings import WeightsSettings
from protocol.wire.server import Server


def config(folder: Path, name: str = "run", **model: str) -> Config:
    return Config.model_validate({"run": {"dir": str(folder), "name": name}, "model": model})


def test_a_new_run_finds_its_files_made(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path / "deep" / "runs"))
    assert directory.previous is None
    assert directory.logs.is_dir()
    assert Config.model_validate(
        yaml.safe_load((directory.path / "config.yaml").read_text()), strict=False
    ) == config(tmp_path / "deep" / "runs")
    directory.append_metrics({"step": 1})
    directory.append_metrics({"step": 2})
    lines = (directory.path / "metrics.jsonl").read_text().splitlines()  # before it is closed
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    directory.write_summary({"steps": 2})
    directory.close()
    assert json.loads((directory.path / "summary.json").read_text()) == {"steps": 2}


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.db"])
def test_a_run_whose_files_were_removed_is_told_so(tmp_path: Path, name: str) -> None:
    directory = RunDirectory(config(tmp_path))
    (directory.path / "run.db").touch()
    directory.append_metrics({"step": 1})
    (directory.path / name).unlink()
    with pytest.raises(RunError, match=f"{name} was removed or renamed under the run"):
        directory.append_metrics({"step": 2})
    directory.close()


def test_an_evaluation_for_whose_file_there_is_no_room_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(config(tmp_path))

    def refuse(path: Path, how: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "_open_file", refuse)
    with pytest.raises(RunError, match=r"evaluations\.jsonl cannot be written: No space"):
        directory.append_evaluation({"step": 1})
    directory.close()


def test_an_evaluation_of_a_run_whose_folder_was_renamed_is_told_the_way_back(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path))
    (tmp_path / "run").rename(tmp_path / "mine")
    with pytest.raises(RunError, match=f"{tmp_path}/run was removed or renamed under the run"):
        directory.append_evaluation({"step": 1})
    directory.close()


def test_a_run_whose_folder_was_renamed_is_told_the_way_back(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path))
    directory.append_metrics({"step": 1})
    (tmp_path / "run").rename(tmp_path / "mine")
    said = f"{tmp_path}/run was removed or renamed .* give it its name back, and the same command goes on"
    with pytest.raises(RunError, match=said):
        directory.append_metrics({"step": 2})
    directory.close()


@contextmanager
def no_room() -> Iterator[None]:
    """No byte can be written to a file, as on a full disk: nor to that which pytest may write to outside."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_for_the_lock_or_the_address_is_told_in_words(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path, "first"))
    with no_room(), pytest.raises(ConfigError, match=r"second cannot be written: .* free space"):
        RunDirectory(config(tmp_path, "second"))
    with no_room(), pytest.raises(ConfigError, match=r"first cannot be written: .* free space"):
        directory.publish_address("tcp://127.0.0.1:1")
    directory.close()


def test_what_is_in_the_way_of_a_file_of_the_run_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "first" / "address").mkdir(parents=True)
    with pytest.raises(ConfigError, match="first cannot be written"):
        RunDirectory(config(tmp_path, "first"))
    directory = RunDirectory(config(tmp_path, "second"))
    (directory.path / "socket").touch()
    (directory.logs / "controller.log").mkdir()
    with pytest.raises(ConfigError, match="second cannot be written"):
        directory.endpoint("auto")
    with ExitStack() as stack, pytest.raises(ConfigError, match="second cannot be written"):
        directory.begin_log(level="info", stack=stack)
    directory.close()


def test_two_controllers_never_share_one(tmp_path: Path) -> None:
    first = RunDirectory(config(tmp_path))
    with pytest.raises(ConfigError, match=f"in use by the controller with pid {os.getpid()}"):
        RunDirectory(config(tmp_path))
    assert not (tmp_path / "run.1").exists()
    RunDirectory(config(tmp_path, "other")).close()
    first.close()
    RunDirectory(config(tmp_path)).close()


def test_a_run_that_is_over_has_no_controller_though_its_program_goes_on(tmp_path: Path) -> None:
    """`launch.py stop` interrupted the program, which might have been at its next run."""
    settings = config(tmp_path)
    first = RunDirectory(settings)
    assert controller_of(first.path) == os.getpid()
    with pytest.raises(ConfigError):
        RunDirectory(settings)
    assert controller_of(first.path) == os.getpid()  # the refused one has left the file as it was
    first.close()
    assert controller_of(first.path) is None


def test_others_do_not_sweep_the_versions_of_a_run_whose_workers_are_all_dead(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    settings = config(tmp_path).model_copy(update={"weights": WeightsSettings(directory=str(versions))})
    directory = RunDirectory(settings)
    sweep(str(versions))
    (mine,) = versions.iterdir()
    directory.close()
    assert not mine.exists()


def test_a_run_that_goes_on_with_versions_elsewhere_leaves_none_where_they_were(tmp_path: Path) -> None:
    before, after = (
        config(tmp_path).model_copy(update={"weights": WeightsSettings(directory=str(tmp_path / name))})
        for name in ("before", "after")
    )
    killed = segment_directory(tmp_path / "run", host=this_host(), base=before.weights.directory)
    killed.mkdir(mode=0o700, parents=True)
    (tmp_path / "run").mkdir()
    Store(tmp_path / "run" / "run.db").close()
    directory = RunDirectory(after)
    assert directory.has_run
    directory.go_on([], [], before.weights.directory)
    assert not killed.exists()
    directory.close()


@pytest.mark.parametrize("goes_on", [False, True])
def test_how_a_run_ended_stands_until_it_ends_again(tmp_path: Path, goes_on: bool) -> None:
    """A start that is refused, or interrupted before the run goes on, has changed nothing."""
    (tmp_path / "run").mkdir()
    Store(tmp_path / "run" / "run.db").close()
    (tmp_path / "run" / "summary.json").write_text('{"reason": "Ctrl-C."}')
    with closing(RunDirectory(config(tmp_path))) as directory:
        directory.go_on([], [], "auto")
        assert not (directory.path / "summary.json").exists()
        if goes_on:
            directory.write_summary({"reason": "All steps are made."})
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told == {"reason": "All steps are made." if goes_on else "Ctrl-C."}


def test_older_runs_are_set_aside_under_the_next_number(tmp_path: Path) -> None:
    for number in range(3):
        directory = RunDirectory(config(tmp_path))
        directory.write_summary({"number": number})
        directory.close()
    assert directory.previous == tmp_path / "run.2"
    assert json.loads((tmp_path / "run.1" / "summary.json").read_text()) == {"number": 0}
    assert json.loads((tmp_path / "run.2" / "summary.json").read_text()) == {"number": 1}
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"number": 2}


def test_the_prepared_model_stays_and_is_used_again_if_it_was_made_the_same_way(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path, factory="model.py:make"))
    assert directory.model == tmp_path / "run" / "model"
    assert not directory.has_model("seed 0")
    directory.model.mkdir()
    (directory.model / "config.json").touch()
    (directory.path / "model.json").write_text("seed 0")
    directory.close()

    again = RunDirectory(config(tmp_path, factory="model.py:make"))
    assert again.has_model("seed 0")
    assert (again.model / "config.json").exists()
    assert not again.has_model("seed 1")
    assert not again.model.exists()
    again.close()


def test_a_model_that_the_user_put_there_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    directory = RunDirectory(config(tmp_path, factory="model.py:make", path=str(own)))
    assert directory.has_model("seed 0")
    directory.close()


def test_the_address_and_the_socket_folder_exist_only_while_the_run_does(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path / "r"))
    (directory.path / "socket").mkdir()  # a killed run left it, and it was opened to others
    (directory.path / "socket").chmod(0o777)
    endpoint = directory.endpoint("auto")
    folder = Path(endpoint.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    directory.publish_address(endpoint)
    assert (directory.path / "address").read_text() == endpoint + "\n"
    assert directory.endpoint("tcp://127.0.0.1:5000") == "tcp://127.0.0.1:5000"
    directory.close()
    assert not folder.exists()
    assert not (directory.path / "address").exists()


def test_a_socket_path_that_would_be_too_long_moves_to_a_private_folder(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path / ("x" * 120)))
    path = Path(directory.endpoint("auto").removeprefix("ipc://"))
    assert len(str(path)) <= MAX_SOCKET_PATH
    sweep(str(path.parent.parent))  # as another run does whose weights.directory is there
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    directory.close()
    assert not path.parent.exists()


def test_a_path_that_sqlite_would_not_open_is_refused_as_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bytes; expected 504 at most, as SQLite.*Set run\.dir"):
        RunDirectory(config(tmp_path / ("x" * 200) / ("y" * 200) / ("z" * 200)))
    assert not list(tmp_path.iterdir())


def test_the_private_folder_of_a_killed_controller_is_used_again_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with closing(RunDirectory(config(tmp_path / ("x" * 120)))) as killed:
        left = Path(killed.endpoint("auto").removeprefix("ipc://")).parent
    left.mkdir(mode=0o700)
    (left / "controller").touch()
    with closing(RunDirectory(config(tmp_path / ("x" * 120)))) as directory:
        assert directory.endpoint("auto") == f"ipc://{left}/controller"
        left.chmod(0o777)  # as if somebody else had made it
        assert directory.endpoint("auto") != f"ipc://{left}/controller"
    assert list(temporary.iterdir()) == [left]


def test_a_place_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written: .*; *set run.dir|cannot be written"):
        RunDirectory(config(tmp_path / "file"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/abs"])
def test_a_name_that_is_no_plain_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError, match="expected a plain folder name"):
        config(tmp_path, name)
    made = config(tmp_path)
    unlooked = made.model_copy(update={"run": made.run.model_copy(update={"name": name})})
    with pytest.raises(ConfigError, match=r"run\.name"):
        RunDirectory(unlooked)


def test_the_address_of_a_controller_that_was_killed_is_gone_before_its_run_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path))
    (directory.path / "run.db").touch()
    directory.close()
    (directory.path / "address").write_text("tcp://127.0.0.1:1\n")  # as if it had not come to closing
    after = RunDirectory(config(tmp_path))
    assert after.has_run
    assert not (after.path / "address").exists()
    after.close()


def test_a_run_behind_a_link_is_one_run_whichever_way_one_comes(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    RunDirectory(config(tmp_path / "big", "exp")).close()
    (tmp_path / "runs" / "exp").symlink_to(tmp_path / "big" / "exp")
    directory = RunDirectory(config(tmp_path / "runs", "exp"))
    for way in ("runs", "big"):
        assert controller_of(tmp_path / way / "exp") == os.getpid()
        with pytest.raises(ConfigError, match="in use by the controller"):
            RunDirectory(config(tmp_path / way, "exp"))
    directory.append_metrics({"step": 1})
    directory.close()
    RunDirectory(config(tmp_path / "runs", "exp")).close()  # sets the first aside, beside it
    assert (tmp_path / "big" / "exp.1" / "metrics.jsonl").read_text() != ""
    assert (tmp_path / "runs" / "exp" / "metrics.jsonl").read_text() == ""


def test_a_folder_whose_taking_was_interrupted_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as now:
        now.setattr("controller.host.run_directory.sweep", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            RunDirectory(config(tmp_path))
    RunDirectory(config(tmp_path)).close()
    assert raised.tb is not None, "as in a notebook, which keeps the last one"


def interrupted(base: str, *, keep: Path) -> None:
    raise KeyboardInterrupt


def test_a_link_to_a_disk_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "run")
    with pytest.raises(ConfigError, match=r"disk/run, which is not there\. Mount the disk"):
        RunDirectory(config(tmp_path))
    assert not (tmp_path / "disk").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_line_that_the_disk_has_no_room_for_is_told_in_words(tmp_path: Path) -> None:
    directory = RunDirectory(config(tmp_path))
    for name, append in (
        ("metrics.jsonl", directory.append_metrics),
        ("evaluations.jsonl", directory.append_evaluation),
    ):
        append({"step": 1})
        with open("/dev/full", "wb") as full:
            file = directory._metrics if name == "metrics.jsonl" else directory._evaluations
            assert file is not None
            os.dup2(full.fileno(), file.fileno())
        with pytest.raises(RunError, match=rf"{name} cannot be written: No space.*same command goes on"):
            append({"step": 2})
    directory.close()


def test_a_place_for_versions_that_cannot_be_made_is_told_with_its_own_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    there = WeightsSettings(directory=str(tmp_path / "file" / "versions"))
    with pytest.raises(ConfigError, match=r"versions/staleflow-.* cannot be made: .*weights\.directory"):
        RunDirectory(config(tmp_path).model_copy(update={"weights": there}))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_log_whose_last_lines_the_disk_did_not_take_says_so_in_one_line_and_is_closed_without_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory(config(tmp_path))
    with ExitStack() as stack, open("/dev/full", "wb") as full:
        stack.callback(directory.close)
        directory.begin_log(level="info", stack=stack)
        (handler,) = logging.getLogger("staleflow").handlers
        assert isinstance(handler, logging.FileHandler)
        os.dup2(full.fileno(), handler.stream.fileno())
        for _ in range(2):
            logging.getLogger("staleflow.controller").warning("The disk is full.")
    log = tmp_path / "run" / "logs" / "controller.log"
    assert capsys.readouterr().err == f"warning: {log} lacks lines: No space left on device.\n"
    assert not logging.getLogger("staleflow").handlers
    RunDirectory(config(tmp_path)).close()


def test_a_disk_that_allows_no_change_any_more_keeps_neither_lock_nor_shared_memory_nor_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(config(tmp_path))
    server = Server(directory.endpoint("auto"), on_message=lambda *_: None, on_fault=lambda *_: None)
    directory.publish_address(server.endpoint)
    with monkeypatch.context() as now:
        now.setattr(Path, "unlink", refused)
        server.close()
        directory.close()
    assert server._socket.closed
    assert not segment_directory(directory.path, host=this_host()).exists()
    assert (directory.path / "address").exists()
    RunDirectory(config(tmp_path)).close()
    assert not (directory.path / "address").exists()


def refused(path: Path, missing_ok: bool = False) -> None:
    raise OSError(errno.EROFS, "Read-only file system")
