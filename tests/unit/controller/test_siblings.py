"""A program in a folder with packages named like ours gets ours, or a sentence that names both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.siblings import packages_to_install, refuse_strangers

ROOT = Path(__file__).resolve().parents[3]


def run_in(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """What a script in this folder says, with the checkout on PYTHONPATH."""
    (folder / "program.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "program.py"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["protocol", "strategies"])
@pytest.mark.parametrize("file", ["{}.py", "{}/__init__.py"])
def test_a_package_of_the_programs_is_refused_before_it_runs(tmp_path, name, file):
    place = tmp_path / file.format(name)
    place.parent.mkdir(exist_ok=True)
    place.write_text("print('I ran')\n")
    done = run_in(tmp_path, "from controller import Controller\n")
    found = place.parent if place.name == "__init__.py" else place
    assert f"ImportError: `{name}` is {found} here, and not StaleFlow's {ROOT / name}" in done.stderr
    assert done.stdout == ""


def test_one_that_the_program_has_imported_already_is_refused_too(tmp_path):
    (tmp_path / "strategies.py").write_text("")
    done = run_in(tmp_path, "import strategies\nfrom controller import Controller\n")
    assert f"`strategies` is {tmp_path / 'strategies.py'} here" in done.stderr


def test_a_folder_without_code_hides_nothing_and_what_only_workers_or_launch_py_use_may_be_there(tmp_path):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "install.py").write_text("print('I ran')\n")
    (tmp_path / "workers.py").write_text("NAME = 'mine'\n")
    program = (
        "from controller import Controller\nfrom workers import NAME\n"
        "from controller.siblings import packages_to_install\nprint(NAME, repr(packages_to_install()))\n"
    )
    done = run_in(tmp_path, program)
    assert done.stdout == "mine ''\n", done.stderr


def test_our_own_are_no_strangers():
    refuse_strangers("install", "protocol", "strategies", "workers", "no_such_package_at_all")
    assert packages_to_install() == ""
