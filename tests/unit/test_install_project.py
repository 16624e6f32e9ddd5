"""Packages that are too old for the project, and the project installed without its folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import install
from install import project
from install.project import outdated

ROOT = Path(__file__).resolve().parents[2]
OLD_NAMES = {"STALEFLOW_NO_INSTALL", "PYTHONPATH"}
NEW_ENOUGH = "2.12", "2.12.0", "2.12.0rc1", "2.12a0+nv25.10", "2.100.1", "3", "main", "0.0.0"
RECORD = """Metadata-Version: 2.4
Name: staleflow
Version: 7.8
Requires-Dist: pydantic>=2.12
Requires-Dist: torch<2.15,>=2.12; extra == "workers"
Requires-Dist: no_such_package>=2; extra == "workers"
Provides-Extra: workers
"""


def lay(folder: Path, name: str, version: str) -> None:
    """What says that this version of a package is installed in the folder."""
    record = folder / f"{name}-{version}.dist-info" / "METADATA"
    record.parent.mkdir(parents=True)
    record.write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["1.10.24", "2.9", "2.11.99", "0.1.dev3"])
def test_a_package_that_is_too_old_is_lacking(tmp_path, monkeypatch, version):
    lay(tmp_path, "pydantic", version)
    monkeypatch.syspath_prepend(tmp_path)
    assert install.missing(()) == [f"pydantic>=2.12 ({version} is there)"]


@pytest.mark.parametrize("version", NEW_ENOUGH)
def test_a_package_that_is_new_enough_or_of_no_known_age_is_taken(tmp_path, monkeypatch, version):
    lay(tmp_path, "pydantic", version)
    monkeypatch.syspath_prepend(tmp_path)
    assert install.missing(()) == []


def test_only_the_extras_that_are_asked_for_count(tmp_path, monkeypatch):
    lay(tmp_path, "starlette", "0.20.1")
    monkeypatch.syspath_prepend(tmp_path)
    assert outdated(()) == []
    assert outdated(("lora", "web")) == outdated(("web", "workers")) == ["starlette>=0.50 (0.20.1 is there)"]


def test_a_command_whose_packages_are_too_old_says_so_and_how_to_mend_it(tmp_path):
    """It ended in a traceback of an import, or ran with what it was never written for."""
    lay(tmp_path, "msgspec", "0.18.6")
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), "status", "runs/x"], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "STALEFLOW_NO_INSTALL": "1"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"The command needs more than there is: {sys.executable} lacks msgspec>=0.20 (0.18.6 is there); "
        f"expected an environment with all dependencies. Install them: {sys.executable} -m pip install "
        f"-e '{ROOT}', or unset STALEFLOW_NO_INSTALL.\n"
    )


@pytest.fixture
def installed(tmp_path):
    """The command line as `pip install FOLDER` lays it, without `-e`, beside pip and old packages."""
    shutil.copy(ROOT / "launch.py", tmp_path)
    shutil.copytree(ROOT / "install", tmp_path / "install")
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    lay(tmp_path, "pydantic", "1.10.24")
    lay(tmp_path, "torch", "2.11")
    record = tmp_path / "staleflow-7.8.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(RECORD)
    (record / "direct_url.json").write_text('{"url": "file:///the/project", "dir_info": {}}')

    def told(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-m", "launch", *arguments], cwd=tmp_path, capture_output=True, text=True,
            env={name: value for name, value in os.environ.items() if name not in OLD_NAMES},
        )  # fmt: skip

    return told


def test_a_project_installed_without_its_folder_knows_its_version(installed):
    for arguments in (["--version"], ["--help"]):
        done = installed(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("StaleFlow 7.8")


def test_a_project_installed_without_its_folder_makes_no_environment_and_says_what_to_install(
    installed, tmp_path
):
    done = installed("check", "a.yaml")
    assert done.returncode == 1
    assert not (tmp_path / ".venv").exists()
    assert "xxhash, pydantic>=2.12 (1.10.24 is there), torch>=2.12 (2.11 is there); expected" in done.stderr
    way = f"Install them: {sys.executable} -m pip install 'staleflow[workers] @ file:///the/project'.\n"
    assert done.stderr.endswith(way)


def test_a_project_installed_from_a_repository_names_its_commit(installed, tmp_path):
    told = '{"url": "https://h/p.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}'
    (tmp_path / "staleflow-7.8.dist-info" / "direct_url.json").write_text(told)
    assert "'staleflow[simulate] @ git+https://h/p.git@ab12'.\n" in installed("simulate", "a.yaml").stderr
    assert installed("--version").stdout.startswith("StaleFlow 7.8, commit ab12 (")


def test_in_an_environment_of_uv_which_has_no_pip_uv_is_what_installs(installed, tmp_path):
    shutil.rmtree(tmp_path / "pip")
    told = installed("simulate", "a.yaml").stderr
    assert f"Install them: uv pip install --python {sys.executable} 'staleflow[simulate] @ file:///" in told


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_found_in_each_kind_of_checkout(tmp_path, monkeypatch):
    def git(*words: str, at: str = "one") -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path / at), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def found(name: str) -> str:
        monkeypatch.setattr(project, "ROOT", tmp_path / name)
        return project.commit()

    (tmp_path / "one").mkdir()
    assert found("one") == ""
    git("init", "-q")
    assert found("one") == "", "nothing is committed"
    git("commit", "-q", "--allow-empty", "-m", "first")
    head = git("rev-parse", "HEAD")[: project.COMMIT_CHARS]
    assert found("one") == head
    git("worktree", "add", "-q", "-b", "side", str(tmp_path / "two"))
    assert found("two") == head
    git("commit", "-q", "--allow-empty", "-m", "second", at="two")
    git("pack-refs", "--all")
    assert found("one") == head
    assert found("two") == git("rev-parse", "side")[: project.COMMIT_CHARS] != head
    git("checkout", "-q", "--detach")
    assert found("one") == head
    (tmp_path / "one" / ".git" / "HEAD").write_bytes(b"\xff")
    assert found("one") == ""


def test_the_command_that_an_installation_brings_is_launch_py():
    import launch

    module, _, name = project.read_project()["project"]["scripts"]["staleflow"].partition(":")
    assert (module, getattr(launch, name)) == ("launch", launch.main)


def test_the_version_names_the_commit_that_a_run_would_store():
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), "--version"], capture_output=True, text=True
    )
    told = f", commit {project.commit()} (Python" if project.commit() else f"{project.version()} (Python"
    assert told in done.stdout
