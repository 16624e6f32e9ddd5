"""A callable is named by the path that workers import, or refused with a reason that is true."""

import importlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from controller.given.importable import import_path
from protocol.errors import ConfigError

ROOT = Path(__file__).parents[4]
SCRIPT = """
from controller import Config, Controller

def score(completion):
    return 1.0

try:
    print(Controller(Config(), reward=score).config.reward.function)
except Exception as error:
    print(error)
"""


def said(script: Path) -> str:
    """What a program says."""
    command, environment = [sys.executable, str(script)], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_script_is_named_by_its_file_and_one_without_py_is_refused(tmp_path):
    """Workers ended later, with `No module named '/home/me/train'`."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "train").write_text(SCRIPT)
    assert said(tmp_path / "train.py") == f"{tmp_path}/train.py:score"
    told = said(tmp_path / "train")
    assert told.startswith(
        f"The reward is `score` of {tmp_path}/train, which workers, being other processes,"
    )
    assert "does not end in `.py`. Rename it, or put" in told


def test_a_program_in_an_archive_has_no_file_and_hears_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SCRIPT)
    assert "module or script that is a file on the disk. Put `def score" in said(tmp_path / "app.zip")


@pytest.mark.parametrize("what", ["reward", "agent"])
def test_what_cannot_be_called_is_refused_whatever_module_holds_it(what):
    """An agent of 5 was taken for a variable of some module that is 5."""
    with pytest.raises(ConfigError, match=f"The {what} is 5; expected a function"):
        import_path(5, what=what)
    with pytest.raises(ConfigError, match=rf"called\. An import path is given as {what}\.function\."):
        import_path("rewards.py:score", what=what)


def runs(*command: str, cwd: Path) -> str:
    """What a program of Python says."""
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("profiler", ["cProfile", "trace"])
def test_the_script_of_a_profiler_is_named_by_its_file(tmp_path, profiler):
    """It was refused: `__main__` of sys.modules is the profiler."""
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--count", "-C", "counts"] if profiler == "trace" else []
    assert runs("-m", profiler, *options, "train.py", cwd=tmp_path).startswith(f"{tmp_path}/train.py:score\n")


SPAWNING = """
import multiprocessing
from controller.given.importable import import_path

class Judge:
    def __call__(self, completion):
        return 1.0

class Game:
    pass

judge = Judge()

def score(completion):
    return 1.0

def say():
    for given, what in (score, "reward"), (judge, "reward"), (Game, "agent"):
        print(*import_path(given, what=what), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=say)
    process.start()
    process.join()
"""


def test_a_spawned_copy_of_a_script_names_its_functions_by_the_file(tmp_path):
    """Workers ended later, with `No module named '__mp_main__'`."""
    (tmp_path / "sweep.py").write_text(SPAWNING)
    names = runs("sweep.py", cwd=tmp_path).splitlines()
    assert names == [f"{tmp_path}/sweep.py:{name} {tmp_path}" for name in ("score", "judge", "Game")]


def loaded_by_hand(path: Path, name: str, *, is_kept: bool) -> Any:
    """A module as programs load a file whose name they compute."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if is_kept:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_file_that_was_loaded_by_hand_is_named_by_its_path(tmp_path, monkeypatch, is_kept):
    """Workers ended later, with `No module named 'of_today'`; or it was refused."""
    monkeypatch.delitem(sys.modules, "of_today", raising=False)
    (tmp_path / "rewards.py").write_text("def score(completion): return 1.0")
    module = loaded_by_hand(tmp_path / "rewards.py", "of_today", is_kept=is_kept)
    assert import_path(module.score) == (f"{tmp_path}/rewards.py:score", str(tmp_path))


def test_a_function_of_a_module_that_was_reloaded_is_refused_with_what_to_import(tmp_path, monkeypatch):
    """It was told that it has no name at the top level of a module, which it seemed to have."""
    (tmp_path / "edited.py").write_text("def score(completion): return 1.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited")
    old = module.score
    importlib.reload(module)
    with pytest.raises(ConfigError, match=r"as after a reload.*`from edited import score` again, and pass"):
        import_path(old)
    assert import_path(module.score) == ("edited:score", str(tmp_path))
    monkeypatch.delitem(sys.modules, "edited")


def test_a_cell_of_a_notebook_is_told_how_to_make_a_file(monkeypatch):
    def typed(completion):
        return 1.0

    with pytest.raises(ConfigError) as told:
        import_path(typed)
    assert "%%writefile" not in str(told.value)
    monkeypatch.setattr(sys.modules["__main__"], "get_ipython", lambda: None, raising=False)
    with pytest.raises(ConfigError, match=r"pass that\. In a notebook, a cell that begins with `%%writefile"):
        import_path(typed)
