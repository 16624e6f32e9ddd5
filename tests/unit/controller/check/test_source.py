"""What is read out of sources: definitions, their parameters, and whether they give a result."""

import sys
from importlib.util import spec_from_file_location

import pytest

from controller.check.source import Definition, asks_at_door, call_problem, find_import_path, look_up


@pytest.fixture
def define(tmp_path):
    def look(code: str, name: str = "f"):
        (tmp_path / "mine.py").write_text(code)
        return look_up(f"{tmp_path}/mine.py:{name}")

    return look


@pytest.mark.parametrize(
    ("code", "required", "names", "takes_any"),
    [
        ("def f(a, b=1, *, c, d=2): return 1", ("a", "c"), ("a", "b", "c", "d"), False),
        ("async def f(a, /, b, **more): return 1", ("a", "b"), ("b",), True),
        ("def f(*rest): return 1", (), (), False),
    ],
)
def test_parameters_are_those_of_the_function(define, code, required, names, takes_any):
    parameters = define(code).parameters
    assert (parameters.required, parameters.names, parameters.takes_any) == (required, names, takes_any)


@pytest.mark.parametrize(
    "code",
    [
        "@decorated\ndef f(a): ...",
        "f = make()",
        "from somewhere import f",
        "if True:\n    def f(a): ...\nelse:\n    def f(b): ...",
        "def f(a): ...\nf = wrapped(f)",
        "from somewhere import *\n",
        "def __getattr__(name): ...",
    ],
)
def test_what_only_importing_could_tell_is_not_guessed(define, code):
    assert define(code) is None


@pytest.mark.parametrize(
    ("body", "has_result"),
    [
        ("return 1", True),
        ("yield 1", True),
        ("raise NotImplementedError", True),
        ("if a:\n        return a", True),
        ("a == 1", False),
        ("return", False),
        ("return None", False),
        ("def inner():\n        return 1", False),
        ("g = lambda: (yield)", False),
        ("...", False),
    ],
)
def test_a_function_that_can_give_nothing_is_known(define, body, has_result):
    assert define(f"def f(a):\n    {body}\n").has_result is has_result


def test_a_class_is_known_with_its_line(define):
    found = define("\n\nclass f:\n    pass\n")
    assert isinstance(found, Definition)
    assert found.is_class
    assert found.place.endswith("mine.py, line 3)")


@pytest.mark.parametrize(
    ("spec", "meant"),
    [("rewards.py", "rewards.py:NAME"), ("rewards.score", "rewards:score"), ("score", None), ("a:c d", None)],
)
def test_what_is_no_import_path_leads_to_one(spec, meant):
    said = look_up(spec)
    assert isinstance(said, str)
    assert said.endswith(f"Did you mean {meant}?" if meant else "`file.py:name`.")


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("folder, *, seed, progress", None),
        ("folder, seed, progress", None),
        ("folder, **options", None),
        ("*all, **options", None),
        ("folder, seed", "takes no `progress`"),
        ("*, seed, progress", "takes 0 arguments by position"),
        ("folder, size, *, seed, progress", "needs `size`, which it is not given"),
        ("folder, *, seed, progress, size", "needs `size`, which it is not given"),
        ("folder, size=1, *, seed, progress, depth=2", None),
    ],
)
def test_a_call_that_cannot_work_is_known(define, parameters, problem):
    found = define(f"def f({parameters}): return 1")
    assert call_problem(found.parameters, positional=1, by_name=("seed", "progress")) == problem


@pytest.mark.parametrize(
    ("code", "is_at_door"),
    [
        ("async def f(policy, row): ...", False),
        ("async def f(data, **more): ...", True),
        ("async def f(base_url, prompt, **more): ...", True),
        ("class f:\n    async def run(self, data, **more): ...", True),
        ("class f:\n    async def __call__(self, base_url, prompt): ...", True),
        ("class f:\n    def reset(self): ...\n    def run(self, data: str): ...", False),
        ("class f: ...", False),
        ("f = made()", False),
        ("def g(): ...", False),
    ],
)
def test_what_asks_at_a_door_is_read_out_of_the_source(tmp_path, code, is_at_door):
    (tmp_path / "mine.py").write_text(code)
    assert asks_at_door(f"{tmp_path}/mine.py:f") is is_at_door


@pytest.mark.parametrize("name", ["a" * 300, "b/" * 3000])
def test_a_name_that_no_file_can_have_is_no_file(name):
    assert not asks_at_door(f"{name}.py:run")
    assert "there is no file" in (find_import_path(f"{name}.py:run") or "")


def test_a_module_is_found_as_an_import_finds_it(tmp_path, monkeypatch):
    """`pip install -e` of a project with its package beside pyproject.toml leaves such a finder."""
    source = tmp_path / "score.py"
    source.write_text("def f(completion): return 1.0\n")

    class Editable:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, source) if name == "installed_editable" else None

    assert "no module installed_editable" in find_import_path("installed_editable:f")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    assert look_up("installed_editable:f").parameters.names == ("completion",)
    assert "defines no g" in find_import_path("installed_editable:g")
    assert "no module installed_editable.inner" in find_import_path("installed_editable.inner:f")


def test_a_file_is_found_on_the_import_path_as_a_run_finds_it(tmp_path, monkeypatch):
    (tmp_path / "on_path_only.py").write_text("def f(completion): return 1.0\n")
    assert "or on PYTHONPATH" in find_import_path("on_path_only.py:f")
    monkeypatch.syspath_prepend(tmp_path)
    assert look_up("on_path_only.py:f").parameters.names == ("completion",)
