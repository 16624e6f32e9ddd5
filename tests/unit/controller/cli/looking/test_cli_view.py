"""`launch.py view`: what is refused before anything listens."""

import pytest

from controller.cli.main import main
from controller.view.orders import give
from protocol.errors import ConfigError
from tests.support.shown_run import recorded


def test_a_run_that_is_not_there_is_said(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nothing")]) == 1
    assert "There is no run at" in capsys.readouterr().err


def test_an_address_that_others_reach_is_refused_and_leaves_no_token(tmp_path, capsys):
    run = recorded(tmp_path / "run")
    assert main(["view", str(run), "--host", "0.0.0.0"]) == 2
    assert "ssh -L" in capsys.readouterr().err
    assert not (run / "view.token").exists()


async def test_an_order_that_is_none_is_refused_here(tmp_path):
    with pytest.raises(ConfigError, match="There is no action 'format'"):
        await give(str(tmp_path), "format", "", "")
