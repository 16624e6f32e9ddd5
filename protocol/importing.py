"""Import paths that users write: `package.module:name` or `path/to/file.py:name`; and what a process finds.

Invariants: standard library only; every failure, the user's own import-time exception included, is a
ConfigError in words; a file is run once per process however often it is named, and by however many threads.
"""

import ast
import difflib
import hashlib
import importlib
import importlib.util
import os
import os.path
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import RLock, local
from types import ModuleType
from typing import Any

from protocol.errors import ConfigError
from protocol.files import is_dir, is_file
from protocol.plain_text import one_line

ROOT = Path(__file__).resolve().parent.parent  # where our packages lie
TAKEN = ("protocol", "strategies", "workers")  # names under which our processes always import ours
LOADING: dict[str, RLock] = {}  # by the name of a file's module
UNMAPPED = "failed to map segment from shared object"  # in the words of glibc
_THREAD = local()  # `specs`: import paths whose modules this thread is importing


def load_object(spec: str) -> Any:  # whatever the user has named
    """The object that an import path names.

    A file is looked up in the working directory, then in the directories of sys.path; its own directory is
    put on sys.path, so that it can import its neighbours, and the one that holds its package, for relative
    imports.
    Raises: ConfigError if the path is malformed, the module cannot be imported, or it has no such name.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name.isidentifier():
        raise ConfigError(
            f"The import path {spec!r} is not of the form `module:name` or `file.py:name`; write for example "
            "`rewards.py:score`."
        )
    specs = _THREAD.__dict__.setdefault("specs", [])
    specs.append(spec)
    before = {*sys.modules}
    try:
        module = _load_file(spec, place) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        whither = f" into the environment of {sys.executable}" if isinstance(error, ImportError) else ""
        way = told_of_ours(getattr(error, "name", None)) or (
            f"Mend the module, install what it needs{whither}, or check the spelling; modules are looked up "
            "beside the configuration and on PYTHONPATH."
        )
        raise ConfigError(f"Importing `{place}` for {spec!r} failed: {_in_words(error)}. {way}") from error
    finally:
        specs.pop()
    if hidden := all_hidden():  # looked up once: a module may bring thousands of others
        for loaded in sys.modules.keys() - before:
            file = getattr(sys.modules.get(loaded), "__file__", None) or ""
            if told := what_is_hidden(file, hidden):
                raise ConfigError(told)
    try:
        return getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
        hint = f"Did you mean `{near[0]}`?" if near else told_of_ours(place)
        raise ConfigError(f"`{place}` has no `{name}`, which {spec!r} asks for. {hint}".rstrip()) from None


def being_imported() -> str | None:
    """The import path whose module is being imported by this thread, and so is calling us; None if none."""
    specs = _THREAD.__dict__.get("specs")
    return specs[-1] if specs else None


def find_file(place: str) -> Path | None:
    """The file of an import path: in the working directory, then in the directories of sys.path."""
    folders = [Path.cwd(), *(Path(entry) for entry in sys.path if entry)]
    # of os.path: what no file system could hold, as its name is too long, is not there
    return next((folder / place for folder in folders if os.path.isfile(folder / place)), None)


def python_path(*folders: str) -> str:
    """PYTHONPATH of a child: our packages, these folders, then what this process has."""
    return os.pathsep.join([str(ROOT), *folders, *filter(None, [os.environ.get("PYTHONPATH")])])


def put_users_first(*, if_safe: bool = False) -> None:
    """Have this process, which is one of ours, find the user's modules as a program of his would.

    A process of ours is started with the folder of our packages first (`python_path`), so that it runs no
    package of others in their place. Where we are installed like any package, that folder holds all others
    as well, and any of them would hide a module of the user's. So it goes behind the standard library, here
    and for what the user starts; our packages stay ours. `if_safe`: not where the user has a package of such
    a name: a process that a library of this one starts, as vLLM does, might run that one.
    """
    for name in TAKEN:
        importlib.import_module(name)
    if if_safe and any(hidden_by_ours(name) for name in TAKEN):
        return
    rest = [entry for entry in sys.path if os.path.realpath(entry) != str(ROOT)]
    places = [at for at, entry in enumerate(rest, 1) if os.path.realpath(entry) in _standard_library()]
    behind = places[-1] if places else len(rest)
    sys.path[:] = [*rest[:behind], str(ROOT), *rest[behind:]]
    os.environ["PYTHONPATH"] = python_path_of_users()


def _standard_library() -> set[str]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return {os.path.realpath(place) for folder in folders for place in (folder, f"{folder}/lib-dynload")}


def python_path_of_users() -> str:
    """PYTHONPATH of this process for a program of the user's: our packages come last, if they lie apart."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in entries if entry and os.path.realpath(entry) != str(ROOT)]
    is_installed = ROOT.name in ("site-packages", "dist-packages")  # another Python needs others
    return os.pathsep.join(others if is_installed else [*others, str(ROOT)])


def hidden_by_ours(name: str) -> Path | None:
    """The user's module or package of one of the TAKEN names, which our processes cannot import."""
    for entry in dict.fromkeys([os.getcwd(), *sys.path]):
        folder = Path(os.path.realpath(entry))
        if folder == ROOT or is_file(folder / "protocol" / "importing.py"):  # another copy of ours
            continue
        for place in (folder / name / "__init__.py", folder / f"{name}.py"):
            if is_file(place):
                return place.parent if place.name == "__init__.py" else place
        if next((folder / name).glob("*.py"), None) is not None:  # a package without __init__.py
            return folder / name
    return None


def cannot_import(error: ImportError) -> str:
    """Why a package that we need cannot be imported, with its first cause and what to do."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    first = "" if cause is error else f" The cause is {type(cause).__name__}: {cause}."
    said = f"{str(error).removesuffix('.')}.{first}"
    if UNMAPPED in said:
        return (
            f"{said} Expected memory for this library (`ulimit -v` says what a process may have), and "
            "packages on a disk that is not mounted noexec. The log has the traceback."
        )
    return (
        f"{said} Expected packages that belong together, as pip install -e '.[workers]' brings them. "
        "If torchvision, torchaudio or torchcodec are here for another build of torch, take them out, which "
        "text models do not need: pip uninstall torchvision torchaudio torchcodec. The log has the traceback."
    )


def hide_torch() -> None:
    """Have transformers do without torch in this process: 2 s and 200 MB that no tokenizer needs.

    Else it imports torch wherever it is installed.
    """
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]  # None hides it
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def all_hidden() -> dict[str, Path]:
    """The user's modules and packages that our processes cannot import, by name."""
    return {name: place for name in TAKEN if (place := hidden_by_ours(name)) is not None}


def what_is_hidden(file: str | Path, hidden: Mapping[str, Path] | None = None) -> str:
    """A sentence where a file imports a package that lies beside it by its name, but gets ours; else "".

    What our package of that name has is ours to import. `hidden`: what `all_hidden` has found, if it was
    asked before.
    """
    hidden = all_hidden() if hidden is None else hidden
    if not hidden or Path(file).suffix != ".py" or "site-packages" in Path(file).parts:
        return ""
    folders = Path(file).resolve().parents
    for name in _imports_of(Path(file)):
        top = name.partition(".")[0]
        if top in hidden and hidden[top].parent in folders and not _is_of_ours(name):
            return f"{file} imports `{top}`. {told_of_ours(top)}"
    return ""


def _imports_of(file: Path) -> Iterator[str]:
    """The names that a file imports, wherever in it, as `package.module` or `package.module.name`."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):  # in an archive, or not the source of what was loaded
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(name), level=0):
                yield from (f"{name}.{alias.name}" for alias in node.names)
            case _:
                pass


def _is_of_ours(name: str) -> bool:
    """Whether our package has what follows its name first: a module, or a name in its `__init__`."""
    top, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    if not first:
        return False
    return (
        is_file(ROOT / top / f"{first}.py")
        or is_dir(ROOT / top / first)
        or hasattr(sys.modules.get(top), first)
    )


def told_of_ours(name: object) -> str:
    """What a name of the user's means here, in sentences, if it is one that ours hides; else \"\"."""
    top = str(name).partition(".")[0]
    theirs = hidden_by_ours(top) if top in TAKEN else None
    if theirs is None:
        return ""
    return (
        f"In a process of StaleFlow `{top}` is {ROOT / top}, which hides {theirs}. Rename yours, or put it "
        f"into a package of yours (`mine.{top}`), and import that."
    )


def hides_python(folders: Iterable[str]) -> str:
    """A sentence where a file in one of these folders, on PYTHONPATH, hides a module of Python's; else ""."""
    for folder in folders:
        if not folder or os.path.realpath(folder) == str(ROOT):
            continue
        for name in sorted(sys.stdlib_module_names):
            for place in (f"{name}.py", f"{name}/__init__.py"):
                if os.path.isfile(os.path.join(folder, place)):
                    return (
                        f"{os.path.join(folder, place)} hides Python's own module `{name}` from processes of "
                        "yours, such as that of a reward function. Rename it, or start from another folder."
                    )
    return ""


def _load_file(spec: str, place: str) -> ModuleType:
    path = find_file(place)
    if path is None:
        raise ConfigError(
            f"There is no file {place!r}, which {spec!r} names; looked in {Path.cwd()} and on sys.path. Give "
            "a path relative to the working directory or the configuration, or an absolute one."
        )
    path = path.resolve()
    package, root = _package_of(path)
    name = f"{package}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    with LOADING.setdefault(name, RLock()):  # as Python's own: another thread waits until it has run
        return sys.modules[name] if name in sys.modules else _run_file(name, path, root)


def _package_of(path: Path) -> tuple[str, Path]:
    """The package around a file, ending in a dot, for its relative imports; and the folder that holds it.

    "" and the file's own folder where there is none.
    """
    folder, names = path.parent, list[str]()
    while is_file(folder / "__init__.py") and folder.name.isidentifier():
        names.insert(0, f"{folder.name}.")
        folder = folder.parent
    return "".join(names), folder


def _run_file(name: str, path: Path, root: Path) -> ModuleType:
    for folder in (path.parent, root):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # before it runs: dataclasses look their own module up
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _in_words(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(str(error))}{where}"
