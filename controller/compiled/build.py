"""Builds the compiled core: copies the sources, compiles the copy, and moves the result to its place.

Invariants: the checkout is only read; a build that fails, or is stopped, leaves the one before in use; a
build appears whole, under the key of its sources; others stay, as a living run may import from them.
"""

import ast
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from controller.compiled.finder import COMPILED, HOME, ROOT, SUFFIX, home, key_of
from install.stopping import Stopping, started
from protocol.errors import ConfigError, RunError
from protocol.files import is_dir, is_file

COPIED = ("controller", "strategies", "protocol")
AS_SOURCES = (
    "controller/core/commands.py", "controller/core/events.py", "controller/core/state/transitions.py",
)  # fmt: skip
"""They stay Python: mypyc knows neither records as the dataclasses that they are, nor generic dataclasses."""
SETTINGS = """[mypy]
python_version = {}.{}
follow_imports = silent
ignore_missing_imports = True
warn_unreachable = True
"""
"""Types are basedpyright's to check; mypy looks only at what is compiled.

What it takes for unreachable would be left out, so that it is refused: mypy believes that an attribute stays
what a condition has found, whatever is called after it.
"""
MARK = "@mypyc_attr(allow_interpreted_subclasses=True)"
"""On each class of the copy: snapshots of the core make objects by `__new__` alone, which this allows."""
MARKED = re.compile(r"^(?:@.*\n)*class \w+(?:\((?!.*(?:NamedTuple|Protocol|Enum|Exception)).*\))?:", re.M)
"""A class that mypyc makes its own, with its decorators."""
SHOWN_LINES = 12  # of the compiler's last words


def why_not_here() -> str:
    """Why this machine cannot compile; "" if it can."""
    compiler = str(sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"{compiler}, the C compiler of this Python, is not on the PATH (Debian: apt install gcc)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not is_file(header):
        return f"{header} is missing: Python's headers (Debian: apt install python3-dev)"
    return ""


def build() -> Path:
    """Compile these sources, if that was not done yet: some minutes of one processor core.

    Returns the folder of the build. Raises: ConfigError if this machine cannot compile; RunError with the
        compiler's last lines, or what the file system says.
    """
    if obstacle := why_not_here():
        raise ConfigError(f"The core cannot be compiled: {obstacle}.")
    try:
        with Stopping() as stopping, tempfile.TemporaryDirectory(prefix="staleflow-compile-") as name:
            copy = Path(name)
            _copy_sources(copy)
            key = key_of(copy)  # of what is compiled, whatever happens to the checkout meanwhile
            place = (home() or HOME) / key
            if not is_dir(place):
                _compile(copy, stopping)
                _move(copy, place)
            return place
    except OSError as error:
        raise RunError(f"The core is not compiled: {error}. Mend that, and compile again.") from error


def _copy_sources(copy: Path) -> None:
    for package in COPIED:
        kept = shutil.ignore_patterns("__pycache__", f"*{SUFFIX}")
        shutil.copytree(ROOT / package, copy / package, ignore=kept)
    (copy / "mypy.ini").write_text(SETTINGS.format(*sys.version_info[:2]))


def _compile(copy: Path, stopping: Stopping) -> None:
    files = [
        file.relative_to(copy).as_posix()
        for folder in COMPILED
        for file in sorted((copy / folder).rglob("*.py"))
        if file.name not in ("__init__.py", "__main__.py")
    ]
    compiled = [file for file in files if file not in AS_SOURCES]
    for file in compiled:
        (copy / file).write_text(with_marks((copy / file).read_text()))
    # -P: names of this folder shall not hide those of libraries
    command = [sys.executable, "-P", str(copy / "controller/compiled/compiler.py"), *compiled]
    with started(command, stopping, folder=copy) as compiler:
        said, _ = compiler.communicate()
    if compiler.returncode:
        last = "\n".join(said.splitlines()[-SHOWN_LINES:])
        raise RunError(
            f"The core is not compiled: mypyc ended with code {compiler.returncode}. Its last "
            f"lines:\n{last}\nRuns go on without it, from the sources. Mend what it names, and compile again."
        )


def with_marks(source: str) -> str:
    """A module with MARK on its classes, each line where it was: blank lines stand above classes."""
    if not MARKED.search(source):
        return source
    marked = MARKED.sub(lambda found: f"{MARK}\n{found[0]}", source)
    marked = marked.replace(f"\n\n{MARK}", f"\n{MARK}")
    lines = marked.splitlines(keepends=True)
    first = next(one.lineno for one in ast.parse(marked).body if isinstance(one, ast.Import | ast.ImportFrom))
    lines[first - 1] = f"from mypy_extensions import mypyc_attr; {lines[first - 1]}"
    return "".join(lines)


def _move(copy: Path, place: Path) -> None:
    """Put the extension modules in place, all at once; builds of other sources stay where they are."""
    whole = copy / place.name
    for file in copy.rglob(f"*{SUFFIX}"):
        if (parts := file.relative_to(copy).parts)[0] in ("build", place.name):
            continue
        target = whole.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as name:
        shutil.copytree(whole, Path(name, place.name))
        Path(name, place.name).rename(place)
