"""What another user has put where a run is to be is neither used nor written to."""

import os
from pathlib import Path

import pytest

from controller.config.models import Config
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError


def config(folder: Path) -> Config:
    return Config.model_validate({"run": {"dir": str(folder), "name": "run"}})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user's")
@pytest.mark.parametrize("place", ["run", ".run.lock"])
def test_what_another_user_put_where_everybody_may_write_is_refused(tmp_path: Path, place: str) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.mkdir()
    shared.chmod(0o1777)
    (elsewhere / "thesis.tex").write_text("all of it")
    for target in (elsewhere, elsewhere / "thesis.tex"):
        (shared / place).symlink_to(target)
        os.chown(shared / place, 65534, 65534, follow_symlinks=False)
        with pytest.raises(ConfigError, match=f"{place} is of the user with id 65534, in a folder where"):
            RunDirectory(config(shared))
        (shared / place).unlink()
    assert (elsewhere / "thesis.tex").read_text() == "all of it"
    assert [file.name for file in elsewhere.iterdir()] == ["thesis.tex"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user's")
def test_a_folder_of_another_user_in_a_folder_of_ones_own_is_there_with_ones_consent(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 65534, 65534)
    RunDirectory(config(tmp_path)).close()


def test_a_lock_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    (tmp_path / ".run.lock").symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(ConfigError, match="cannot be written"):
        RunDirectory(config(tmp_path))
    assert (tmp_path / "thesis.tex").read_text() == "all of it"
