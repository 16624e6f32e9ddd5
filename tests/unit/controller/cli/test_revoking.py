"""`launch.py revoke`: the folder of the run's keys, from wherever it is called, or a word on why not."""

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.config.load import load_config
from controller.host.run_directory import RunDirectory
from protocol.wire.security import make_keys


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The directory of a run that was started beside its keys; the caller is elsewhere, beside others."""
    for place in ("home", "elsewhere"):
        make_keys(tmp_path / place / "keys", "node1")
    monkeypatch.chdir(tmp_path / "home")
    Path("run.yaml").write_text("controller: {keys: keys}\n")

    def run(*overrides: str) -> Path:
        monkeypatch.chdir(tmp_path / "home")
        config = load_config("run.yaml", overrides)
        directory = RunDirectory(config)
        directory.close()
        found = directory.path.absolute()
        monkeypatch.chdir(tmp_path / "elsewhere")
        return found

    return run


def admitted(tmp_path: Path) -> list[str]:
    places = ("home", "elsewhere")
    return [place for place in places if (tmp_path / place / "keys/workers/node1.json").exists()]


@pytest.mark.parametrize("keys", ["keys", "./keys", "../home/keys", "${KEYS}"])
def test_the_keys_of_a_run_are_found_from_another_folder(keys, started, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KEYS", "keys")
    run = started(f"controller.keys={keys}")
    assert main(["revoke", str(run), "node1"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/home/keys admits node1 no more.\n"
    assert admitted(tmp_path) == ["elsewhere"]


def test_a_folder_is_told_as_a_whole_path(started, tmp_path, capsys):
    started()
    assert main(["revoke", "keys", "node1"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/elsewhere/keys admits node1 no more.\n"
    assert admitted(tmp_path) == ["home"]


def test_a_relative_folder_of_an_earlier_release_is_not_guessed(started, tmp_path, capsys):
    run = started()
    file = run / "config.yaml"
    file.write_text(file.read_text().replace(f"{tmp_path}/home/keys", "keys"))
    assert main(["revoke", str(run), "node1"]) == 2
    assert "names its folder of keys 'keys', relative to" in (told := capsys.readouterr().err)
    assert "launch.py revoke FOLDER node1" in told
    assert admitted(tmp_path) == ["home", "elsewhere"]


@pytest.mark.parametrize(("folder", "what"), [("none", "none is not there"), (".", "holds no keys")])
def test_what_is_no_folder_of_keys_is_named(folder, what, started, tmp_path, capsys):
    started()
    assert main(["revoke", folder, "node1"]) == 2
    assert f"{what}, so no key was revoked" in capsys.readouterr().err
    assert admitted(tmp_path) == ["home", "elsewhere"]


@pytest.mark.parametrize("text", ["", "controller: {}", "controller: [", "[1, 2]"])
def test_a_folder_whose_configuration_is_no_runs_is_said_to_be_none(text, started, tmp_path, capsys):
    run = started()
    (run / "config.yaml").write_text(text)
    assert main(["revoke", str(run), "node1"]) == 2
    told = capsys.readouterr().err
    assert f"{run / 'config.yaml'} is no configuration of a run" in told
    assert "launch.py revoke FOLDER NAME" in told
    assert admitted(tmp_path) == ["home", "elsewhere"]


@pytest.mark.parametrize("bad", ["node1", "rollout-0"])
def test_of_several_keys_none_is_made_if_one_cannot_be(bad, tmp_path, capsys):
    make_keys(tmp_path / "keys", "node1")
    words = ["keygen", str(tmp_path / "keys"), "--role", "rollout", "--name", "node2", "--name"]
    assert main([*words, bad]) == 2
    assert bad in capsys.readouterr().err
    assert [path.name for path in sorted((tmp_path / "keys").glob("*.key"))] == ["node1.key", "server.key"]
    assert main([*words, "node2"]) == 0  # named twice, made once
    assert (tmp_path / "keys/node2.key").exists()
