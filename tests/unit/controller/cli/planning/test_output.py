"""`simulate -o` refuses a folder that it cannot write to before it simulates."""

import os

import pytest

from controller.cli.main import main
from controller.cli.planning.output import made_folder
from protocol.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    (tmp_path / "small.yaml").write_text(
        "run: {steps: 2}\nrollout: {instances: 1}\nlogging: {console: plain}\n"
    )
    return str(tmp_path / "small.yaml")


@pytest.mark.parametrize("words", [[], ["--gpus", "2"]])
def test_a_file_in_the_place_of_the_folder_is_said_before_the_simulation(file, words, capsys):
    assert main(["simulate", file, *words, "-o", f"{file}/out"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"-o {file}/out cannot be made: Not a directory; expected a folder")
    assert said.out == ""


def test_a_folder_is_made_with_those_above_it(tmp_path):
    assert made_folder(str(tmp_path / "new" / "out")).is_dir()


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written to; expected a folder that you may write to"):
        made_folder(str(tmp_path))
