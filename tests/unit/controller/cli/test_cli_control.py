"""`launch.py control`: the message that an order becomes."""

import os

import pytest

from controller.cli.main import main
from controller.cli.remote import order_of
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


def test_an_order_to_a_run_whose_controller_is_gone_says_what_to_do(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "address").write_text(f"ipc://{run}/nobody")
    monkeypatch.setattr(orders, "ANSWER_S", 0.05)
    assert main(["control", str(run), "pause"]) == 2
    assert f"None is at work on {run} here: `launch.py status {run}`" in capsys.readouterr().err
    (tmp_path / ".run.lock").write_text(str(os.getpid()))
    assert main(["control", str(run), "pause"]) == 2
    assert "`launch.py stacks` of the run" in capsys.readouterr().err
