"""Import paths give the object, or words."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest

from protocol.errors import ConfigError
from protocol.importing import (
    ROOT,
    cannot_import,
    hide_torch,
    load_object,
    python_path,
    what_is_hidden,
)

HIDDEN = """
from protocol.importing import hide_torch
hide_torch()
try:
    import torch
except ImportError:
    print("no torch")
"""


def test_a_module_path_gives_its_attribute() -> None:
    assert load_object("protocol.errors:ConfigError") is ConfigError


def test_a_file_is_run_once_and_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_task.py").write_text("VALUE = 3\n")
    file = tmp_path / "task.py"
    file.write_text("from neighbour_of_task import VALUE\ndef score(): return VALUE\n")
    assert load_object(f"{file}:score")() == 3
    assert load_object(f"{file}:score") is load_object(f"{file}:score")


def test_a_file_of_a_package_may_import_by_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the script of `python -m tasks_by_dots.sums.train`, which workers import by its file."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    inner = tmp_path / "tasks_by_dots" / "sums"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    (inner.parent / "words.py").write_text("YES = 'yes'\n")
    (inner / "right.py").write_text("from ..words import YES\nRIGHT = YES\n")
    (inner / "train.py").write_text("from .right import RIGHT\nfrom . import right\n")
    assert load_object(f"{inner}/train.py:RIGHT") == "yes"
    assert load_object(f"{inner}/train.py:right") is sys.modules["tasks_by_dots.sums.right"]


def test_a_relative_file_is_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text("NAME = 'here'\n")
    monkeypatch.chdir(tmp_path)
    assert load_object("here.py:NAME") == "here"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rewards", "not of the form"),
        (":score", "not of the form"),
        ("rewards:", "not of the form"),
        ("nowhere.py:score", "no file 'nowhere.py'"),
        (f"{'a' * 300}.py:score", "no file 'aaa"),
        ("no_such_module_at_all:score", "ModuleNotFoundError"),
        ("protocol.errors:ConfigErorr", "Did you mean `ConfigError`"),
    ],
)
def test_a_wrong_path_is_refused_in_words(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_object(spec)


def test_an_exception_at_import_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\ny = x / 0\n")
    for _ in range(2):  # a failed import leaves nothing behind that a second one would take for the module
        with pytest.raises(ConfigError, match=r"ZeroDivisionError.*broken.py, line 2"):
            load_object(f"{file}:y")


def test_a_package_that_is_missing_is_told_with_the_environment_that_lacks_it(tmp_path: Path) -> None:
    """Another Python of the user may have it: launch.py goes on in an environment of its own."""
    file = tmp_path / "needs_more.py"
    file.write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError) as caught:
        load_object(f"{file}:score")
    assert f"install what it needs into the environment of {sys.executable}, or" in str(caught.value)


def test_an_exception_of_many_lines_is_told_in_one(tmp_path: Path) -> None:
    file = tmp_path / "broken_in_lines.py"
    file.write_text("raise ImportError('libcuda\\n  is not here\\n')\n")
    with pytest.raises(ConfigError, match=r"failed: ImportError: libcuda is not here \(.*line 1\)\. Mend"):
        load_object(f"{file}:y")


def test_a_module_that_exits_does_not_end_the_process_that_imports_it(tmp_path: Path) -> None:
    file = tmp_path / "leaving.py"
    file.write_text("import sys\nsys.exit('run me as a script')\n")
    with pytest.raises(ConfigError, match=r"SystemExit: run me as a script.*leaving.py, line 2"):
        load_object(f"{file}:y")


def test_a_thread_that_names_a_file_while_another_runs_it_waits_until_it_has_run(tmp_path: Path, monkeypatch):
    file, there = tmp_path / "mine.py", ThereTwice(hashlib.sha256)
    file.write_text("import there_twice\n\nthere_twice.wait()\nvalue = 1\n")
    monkeypatch.setitem(sys.modules, "there_twice", there)
    monkeypatch.setattr("protocol.importing.hashlib", there)
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(load_object, f"{file}:value") for _ in range(2)]
        assert [each.result(60) for each in asked] == [1, 1]


class ThereTwice(ModuleType):
    """`wait()` ends when a second thread has looked for the file."""

    def __init__(self, sha256: Callable[[bytes], object]) -> None:
        super().__init__("there_twice")
        self._sha256, self._seen, self._both = sha256, 0, Event()

    def sha256(self, data: bytes) -> object:
        found = self._sha256(data)
        self._seen += 1
        if self._seen == 2:
            self._both.set()
        return found

    def wait(self) -> None:
        assert self._both.wait(60)


def test_a_child_finds_our_packages_then_named_folders_then_what_this_process_finds(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", f"/mine{os.pathsep}/others")
    assert python_path("/a", "/b").split(os.pathsep) == [str(ROOT), "/a", "/b", "/mine", "/others"]
    monkeypatch.setenv("PYTHONPATH", "")
    assert python_path() == str(ROOT), "an empty entry would be the working directory"
    (tmp_path / "protocol").mkdir()
    words = [sys.executable, "-P", "-c", "import protocol.ids; print(protocol.__file__)"]
    environment = os.environ | {"PYTHONPATH": python_path(str(tmp_path))}
    found = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).parent.parent == ROOT


def test_a_library_for_which_there_is_no_memory_needs_no_other_packages():
    error = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    told = cannot_import(error)
    assert told.startswith(f"{error}. Expected memory for this library (`ulimit -v`")
    assert "noexec" in told
    assert "torchvision" not in told


def test_why_a_package_cannot_be_imported_is_a_sentence_of_its_own():
    assert cannot_import(ImportError("no torch here")).startswith("no torch here. Expected packages that")
    assert cannot_import(ImportError("No torch here.")).startswith("No torch here. Expected packages that")


def test_a_process_that_hides_torch_cannot_import_it_and_one_that_has_it_keeps_it(monkeypatch):
    words = [sys.executable, "-c", HIDDEN]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "no torch\n"
    monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    monkeypatch.setitem(sys.modules, "torch", sys)
    hide_torch()
    assert sys.modules["torch"] is sys


@pytest.mark.parametrize(
    ("line", "is_theirs"),
    [
        ("import workers", True),
        ("from workers import judges", True),
        ("import workers.judges", True),
        ("from workers.judges import score", True),
        ("from workers.engines.interface import RolloutEngine", False),
        ("from protocol import errors", False),
        ("import json", False),
    ],
)
def test_what_our_packages_have_is_ours_to_import_beside_folders_of_their_names(
    line, is_theirs, tmp_path, monkeypatch
):
    """As a plug-in has it whose repository has a `workers` of its own: it may import ours, on purpose."""
    for name in ("workers", "protocol"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judges.py").touch()
    file = tmp_path / "reward.py"
    file.write_text(f"def reward():\n    {line}\n")
    monkeypatch.chdir(tmp_path)
    told = what_is_hidden(file)
    assert told.startswith(f"{file} imports `workers`. In a process of StaleFlow") == is_theirs
    assert bool(told) == is_theirs


def test_a_file_that_cannot_be_read_hides_nothing(tmp_path, monkeypatch):
    """torch has modules whose file is called `_ops.py`, which is nowhere."""
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    assert what_is_hidden("_ops.py") == ""
