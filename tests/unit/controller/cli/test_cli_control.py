"""`launch.py control`: the message that an order becomes."""

import socket
from contextlib import closing

import pytest

from controller.cli import remote
from controller.cli.main import main
from controller.cli.remote import order_of
from controller.durability.holder import lock_of, mark
from controller.view import orders
from protocol.errors import ConfigError
from protocol.messages import Control, DrainWorker


@pytest.mark.parametrize(
    ("action", "argument", "message"),
    [
        ("pause", "", Control("pause", "", "me", "why")),
        ("abort", "12", Control("abort", "12", "me", "why")),
        ("set", "samples.groups=8", Control("set", "samples.groups=8", "me", "why")),
        ("set", "staleness.in_flight_batches=auto",
         Control("set", 'staleness.in_flight_batches="auto"', "me", "why")),
        ("set", "evaluation.threshold=1e-3",
         Control("set", "evaluation.threshold=0.001", "me", "why")),
        ("set", " samples.groups = 6 ", Control("set", "samples.groups=6", "me", "why")),
        ("abort", " 12 ", Control("abort", "12", "me", "why")),
        ("drain", "rollout-1", DrainWorker("rollout-1", "me", "why")),
    ],
)  # fmt: skip
def test_an_order_is_one_message(action, argument, message):
    assert order_of(action, argument, why="why", who="me") == message


@pytest.mark.parametrize(
    ("action", "argument", "text"),
    [
        ("stop", "", "There is no action 'stop'; expected one of pause"),
        ("abort", "", "needs the number of a group"),
        ("pause", "x", "about the whole run"),
        ("set", "samples.groups", "needs a live key"),
        ("set", "samples.groups=[8", "no plain value"),
        ("set", "samples.groups=" + "[" * 5_000, "no plain value"),
    ],
)
def test_what_is_no_order_is_refused_here(action, argument, text):
    with pytest.raises(ConfigError, match=text):
        order_of(action, argument, why="", who="me")


def test_a_run_that_is_not_there_is_said(tmp_path, capsys):
    assert main(["control", str(tmp_path), "pause"]) == 2
    assert capsys.readouterr().err


@pytest.fixture
def left(tmp_path):
    """The directory of a killed run. Another run listens where it did."""
    run = tmp_path / "run"
    run.mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        (run / "address").write_text(f"tcp://127.0.0.1:{other.getsockname()[1]}\n")
        yield run, other


@pytest.mark.parametrize(
    "words", [("control", "pause"), ("drain", "rollout-0"), ("attach", "--role=rollout")]
)
def test_an_order_to_a_run_whose_controller_is_gone_reaches_no_other_run(left, monkeypatch, capsys, words):
    run, other = left
    monkeypatch.setattr(remote, "WAIT_S", 0.1)
    assert main([words[0], str(run), *words[1:]]) == 2
    assert f"No controller is at work on {run} here: `launch.py status {run}`" in capsys.readouterr().err
    other.settimeout(0.1)
    with pytest.raises(TimeoutError):
        other.accept()


def test_an_order_to_a_controller_that_does_not_answer_says_where_to_look(left, monkeypatch, capsys):
    run, _ = left
    lock_of(run).write_text(mark())
    monkeypatch.setattr(orders, "ANSWER_S", 0.05)
    assert main(["control", str(run), "pause"]) == 2
    assert "`launch.py stacks` of the run" in capsys.readouterr().err


def test_a_worker_waits_for_the_controller_of_a_run_that_is_just_being_taken_up(left, monkeypatch):
    run, _ = left
    attached: list[list[str]] = []

    def wait(_):
        lock_of(run).write_text(mark())

    monkeypatch.setattr(remote.time, "sleep", wait)
    monkeypatch.setattr(remote.os, "execve", lambda program, words, environment: attached.append(words))
    main(["attach", str(run), "--role", "rollout"])
    assert str(run) in attached[0]


def test_an_order_to_a_controller_elsewhere_is_sent_there(left, monkeypatch, capsys):
    run, _ = left
    (run / "address").write_text("tcp://192.0.2.1:29500\n")  # an address that no machine has
    monkeypatch.setattr(orders, "ANSWER_S", 0.05)
    assert main(["control", str(run), "pause"]) == 2
    assert "No controller answered at tcp://192.0.2.1:29500 within 0.05 s" in capsys.readouterr().err
