"""`launch.py view`: what is refused before anything listens."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.view.door.listener import left_token
from controller.view.orders import give
from protocol.errors import ConfigError
from tests.support.shown_run import recorded

ROOT = Path(__file__).resolve().parents[5]


def test_a_run_that_is_not_there_is_said(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nothing")]) == 1
    assert "There is no run at" in capsys.readouterr().err


def test_an_address_that_others_reach_is_refused_and_leaves_no_token(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    assert main(["view", str(run), "--host", "0.0.0.0"]) == 2
    assert "ssh -L" in capsys.readouterr().err
    assert not (run / "view.token").exists()


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_there_is_none_of_is_refused_in_a_sentence(tmp_path, capsys, port):
    assert main(["view", str(recorded(tmp_path / "run")), "--port", port]) == 2
    told = capsys.readouterr().err
    assert "Invalid value for '--port': expected a number" in told
    assert told.count("\n") == 1


async def test_an_order_that_is_none_is_refused_here(tmp_path):
    with pytest.raises(ConfigError, match="There is no action 'format'"):
        await give(str(tmp_path), "format", "", "")


def test_a_run_that_cannot_be_read_keeps_nobody_from_the_others(tmp_path, capsys, monkeypatch):
    good, bad = recorded(tmp_path / "good"), recorded(tmp_path / "bad")
    (bad / "run.db").write_bytes((bad / "run.db").read_bytes()[:9_000])

    async def serve(app, bound, on_ready):
        bound.close()
        on_ready()

    monkeypatch.setattr("controller.view.door.server.serve", serve)
    assert main(["view", str(good), str(bad)]) == 0
    said = capsys.readouterr()
    assert "One run is shown as unreadable" in said.err
    assert str(bad / "run.db") in said.err
    assert said.out.startswith("View: http://127.0.0.1:")
    assert main(["view", str(bad)]) == 1


def test_another_view_leaves_the_token_of_the_runs_own_where_it_is(tmp_path, capsys, monkeypatch):
    run = recorded(tmp_path / "run")

    async def serve(app, bound, on_ready):
        bound.close()
        on_ready()
        said = capsys.readouterr().out
        (mine,) = [file for file in run.glob("view.token.*") if str(file) in said]
        assert len(mine.read_text()) > 32

    monkeypatch.setattr("controller.view.door.server.serve", serve)
    with left_token(run, "of the run's own view", is_own=True):
        assert main(["view", str(run)]) == 0
        assert (run / "view.token").read_text() == "of the run's own view"
        assert not list(run.glob("view.token.*"))


@contextmanager
def viewed(run, **more):
    """A process that shows the run, once it does."""
    words = [sys.executable, "launch.py", "view", str(run)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, **more) as process:
        try:
            assert process.stdout is not None
            assert f"(the token is in {run / 'view.token'})" in process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.fixture
def terminal():
    """As on a terminal: these tests may run under nohup, whose children take no notice of one that closes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
def test_a_closed_terminal_ends_a_view_which_takes_its_token_along_and_a_killed_one_keeps_no_place(tmp_path):
    run = recorded(tmp_path / "run")
    with viewed(run):
        pass
    dead = (run / "view.token").read_text()
    with viewed(run) as process:
        assert (run / "view.token").read_text() != dead
        process.send_signal(signal.SIGHUP)
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(run.glob("view.token*"))


@pytest.mark.parametrize("is_there", [True, False])
def test_the_link_is_opened_where_a_browser_is_known(tmp_path, capsys, monkeypatch, is_there):
    run, opened = recorded(tmp_path / "run"), []

    async def serve(app, bound, on_ready):
        bound.close()
        on_ready()

    monkeypatch.setattr("controller.view.door.server.serve", serve)
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or is_there)
    assert main(["view", str(run)]) == 0
    assert not opened
    assert main(["view", str(run), "--open"]) == 0
    (link,) = opened
    assert link.startswith("http://127.0.0.1:")
    assert len(link.partition("?token=")[2]) > 32
    assert ("No browser is known" in capsys.readouterr().err) != is_there
