"""What the compiler gets to see, and where it fails; tests/integration has a build."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from controller.compiled import build, finder
from protocol.errors import ConfigError, RunError

ROOT = Path(__file__).resolve().parents[4]
SOURCES = [file for folder in finder.COMPILED for file in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_marks_move_no_line_and_stand_on_each_class_that_is_mypycs_own(file):
    source = file.read_text()
    marked = build.with_marks(source)
    assert marked.count("\n") == source.count("\n")
    before, after = ast.parse(source), ast.parse(marked)
    for old, new in zip(before.body, (one for one in after.body if not is_added(one)), strict=True):
        assert old.end_lineno == new.end_lineno
        if isinstance(new, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in new.bases}
            others = {"NamedTuple", "Protocol", "StrEnum", "Exception"}
            marks = [one for one in new.decorator_list if ast.unparse(one).startswith("mypyc_attr")]
            assert len(marks) == (not bases & others), new.name


def is_added(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "mypy_extensions"


def test_each_module_that_stays_python_is_there():
    assert {ROOT / name for name in build.AS_SOURCES} <= {*SOURCES}


def test_a_machine_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"cannot be compiled: .* the C compiler of this Python, is not"):
        build.build()


def test_a_compiler_that_fails_leaves_the_builds_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setenv(finder.SWITCH, str(tmp_path / "builds"))
    monkeypatch.setattr(build, "why_not_here", lambda: "")
    start = subprocess.Popen
    fails = [sys.executable, "-c", "print('core.py:1: error: no such type'); raise SystemExit(3)"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: start(fails, **how))
    with pytest.raises(RunError, match=r"ended with code 3[^`]*core.py:1: error: no such type"):
        build.build()
    assert not (tmp_path / "builds").exists()


def test_what_was_compiled_is_not_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setenv(finder.SWITCH, str(tmp_path))
    monkeypatch.setattr(build, "why_not_here", lambda: "")
    monkeypatch.setattr(build, "_compile", lambda *arguments: pytest.fail("it compiles"))
    there = tmp_path / finder.key_of(ROOT)
    there.mkdir()
    assert build.build() == there
