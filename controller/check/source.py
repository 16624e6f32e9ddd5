"""Finds the definition that an import path names by parsing the source; no code is imported or run.

Invariant: in doubt a name is accepted: one below `if` or `try`, from a star import, made by a decorator or by
the module's `__getattr__` is taken to exist, and its parameters are not checked.
"""

import ast
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from protocol.agents.function_shapes import shape_of
from protocol.importing import find_file, told_of_ours, what_is_hidden


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a function, by name."""

    positional: tuple[str, ...]  # that may be given by position
    required: tuple[str, ...]  # without a default
    names: tuple[str, ...]  # that may be given by name
    positional_only: tuple[str, ...]
    takes_more: bool  # *anything
    takes_any: bool  # **anything


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class at the top of a file; `parameters` is None for a class."""

    file: Path
    line: int
    name: str
    is_class: bool = False
    parameters: Parameters | None = None
    has_result: bool = True  # whether it returns a value or yields anywhere
    methods: tuple[tuple[str, Parameters], ...] = ()  # of a class

    @property
    def place(self) -> str:
        """Name, file and line, for messages."""
        return f"{self.name} ({self.file}, line {self.line})"


def find_import_path(spec: str) -> str | None:
    """What is wrong with an import path; None if nothing is."""
    found = look_up(spec)
    return found if isinstance(found, str) else None


def look_up(spec: str) -> Definition | str | None:
    """The definition that an import path names; None if only an import could tell; or what is wrong."""
    found, place = _look_up(spec), spec.rpartition(":")[0]
    if isinstance(found, str):
        return f"{found} {told_of_ours(place)}".rstrip()
    file = found.file if found else find_file(place)
    return (file and what_is_hidden(file)) or found


def _look_up(spec: str) -> Definition | str | None:
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name.isidentifier():
        head, dot, last = spec.rpartition(".")
        meant = f"{head}:{last}" if dot and ":" not in spec else ""
        meant = f"{spec}:NAME" if spec.endswith(".py") else meant
        hint = f" Did you mean {meant}?" if meant else ""
        return f"{spec!r} is not an import path; expected `module:name` or `file.py:name`.{hint}"
    if place.endswith(".py"):
        source = find_file(place)
        if source is None:
            where = f"in {Path.cwd()}, beside the configuration or on PYTHONPATH"
            return f"{spec!r}: there is no file {place} {where}."
        return _find_name(source, name, spec)
    search: list[str] | None = None
    parts = place.split(".")
    for end in range(1, len(parts) + 1):
        found = find_module(".".join(parts[:end]), search)
        if found is None:
            return f"{spec!r}: there is no module {'.'.join(parts[:end])} on the import path."
        search = list(found.submodule_search_locations or [])
    if found.origin is None or not found.origin.endswith(".py"):
        return None  # compiled
    return _find_name(Path(found.origin), name, spec)


def find_module(name: str, within: Sequence[str] | None = None) -> ModuleSpec | None:
    """The spec of a module of this full name, without importing it; `within`: the folders of its package.

    All finders are asked, as `pip install -e` may add a finder of its own in place of a folder on sys.path.
    """
    for finder in sys.meta_path:
        if (find := getattr(finder, "find_spec", None)) and (found := find(name, within)) is not None:
            return found
    return None


def asks_at_door(spec: str) -> bool:
    """Whether the agent of an import path takes parameters of an agent at the door, by its source."""
    found = look_up(spec)
    if not isinstance(found, Definition):
        return False
    methods = dict(found.methods)
    called = found.parameters or methods.get("run") or methods.get("__call__")
    shape = None if called is None or "reset" in methods else shape_of(called.names)
    return shape is not None and shape.asks_at_door


def _find_name(source: Path, name: str, spec: str) -> Definition | str | None:
    try:
        tree = ast.parse(source.read_bytes())
    except SyntaxError as error:
        return f"{spec!r}: {source} is not valid Python: {error.msg} in line {error.lineno}."
    names: set[str] = set()
    for node in ast.walk(tree):  # also below `if` and `try`
        match node:
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                names.add(found)
            case ast.Name(id=found, ctx=ast.Store()):
                names.add(found)
            case ast.ImportFrom() | ast.Import():
                names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    if name in names:
        return _definition(tree, name, source)
    if names & {"*", "__getattr__"}:
        return None
    near = difflib.get_close_matches(name, sorted(names), n=3)
    return f"{spec!r}: {source} defines no {name}." + (f" Did you mean {' or '.join(near)}?" if near else "")


def _definition(tree: ast.Module, name: str, source: Path) -> Definition | None:
    """The definition of a name that is made exactly once, at the top of the file; else None."""
    made = [node for node in ast.walk(tree) if _makes(node, name)]
    top = [node for node in tree.body if node in made]
    if len(made) != 1 or len(top) != 1:
        return None
    match top[0]:
        case ast.ClassDef(decorator_list=[]):
            return Definition(source, top[0].lineno, name, is_class=True, methods=_methods(top[0]))
        case (ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[])) as function:
            parameters = _parameters(function.args)
            has_result = any(map(_gives, function.body))
            return Definition(source, function.lineno, name, parameters=parameters, has_result=has_result)
    return None


def _methods(made: ast.ClassDef) -> tuple[tuple[str, Parameters], ...]:
    functions = [each for each in made.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return tuple((each.name, _parameters(each.args)) for each in functions)


def _makes(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
            return found == name
        case ast.Name(id=found, ctx=ast.Store()):
            return found == name
        case ast.ImportFrom() | ast.Import():
            return any((alias.asname or alias.name).partition(".")[0] == name for alias in node.names)
    return False


def _gives(node: ast.AST) -> bool:
    """Whether this statement can return a value, yield, or raise."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
            return False
        case ast.Return(value=value):
            return value is not None and not (isinstance(value, ast.Constant) and value.value is None)
        case ast.Yield() | ast.YieldFrom() | ast.Raise():
            return True
    return any(map(_gives, ast.iter_child_nodes(node)))


def _parameters(arguments: ast.arguments) -> Parameters:
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    by_name = [each.arg for each in arguments.kwonlyargs]
    pairs = zip(by_name, arguments.kw_defaults, strict=True)
    return Parameters(
        positional=tuple(positional),
        required=(*without_default, *(name for name, default in pairs if default is None)),
        names=tuple(each.arg for each in (*arguments.args, *arguments.kwonlyargs)),
        positional_only=tuple(each.arg for each in arguments.posonlyargs),
        takes_more=arguments.vararg is not None,
        takes_any=arguments.kwarg is not None,
    )


def call_problem(parameters: Parameters, *, positional: int, by_name: tuple[str, ...] = ()) -> str | None:
    """Why a function cannot be called with `positional` arguments and these by name; None if it can."""
    if len(parameters.positional) < positional and not parameters.takes_more:
        return f"takes {len(parameters.positional)} arguments by position"
    taken = parameters.positional[:positional]
    unknown = [name for name in by_name if name not in parameters.names and not parameters.takes_any]
    if unknown:
        return f"takes no `{unknown[0]}`"
    lacking = [name for name in parameters.required if name not in (*taken, *by_name)]
    return f"needs `{lacking[0]}`, which it is not given" if lacking else None
