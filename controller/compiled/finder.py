"""Imports the compiled core in place of its sources, where one was built of exactly these sources.

Invariants: what is built of other sources, or for another Python, is never imported: a changed line means
that the sources run, as if nothing had been compiled; where nothing was ever compiled, nothing is read.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_config_var
from types import ModuleType

from protocol.files import is_dir

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(sys.prefix, "share", "staleflow", "compiled")
"""Where builds lie, one folder for each key: a part of this Python's environment."""
SUFFIX = str(get_config_var("EXT_SUFFIX"))  # of extension modules of this Python on this machine
SWITCH = "STALEFLOW_COMPILED"
"""Variable of the environment: 0 lets the sources run, whatever was compiled; a folder stands for HOME."""
NEEDED = "mypy_extensions"  # which compiled modules import, as mypyc's
COMPILED = ("controller/core", "strategies")
"""Folders whose modules are compiled."""
READ = (*COMPILED, "controller/config", "controller/compiled", "protocol")
"""Folders whose types the compiler reads, and by which a build is known."""


class Finder(MetaPathFinder):
    """Finds the modules of one build."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of a build, as `build.build` makes it."""
        self._files = {
            ".".join(file.relative_to(folder).parts).removesuffix(SUFFIX): file
            for file in folder.rglob(f"*{SUFFIX}")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a compiled module; None for any other, which Python's own finders then look for."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def home() -> Path | None:
    """Where builds are looked for, and put; None if SWITCH is 0."""
    match os.environ.get(SWITCH):
        case "0":
            return None
        case None | "":
            return HOME
        case folder:
            return Path(folder)


def prefer() -> None:
    """From now on import compiled modules, if they were compiled from these sources."""
    if (folder := found()) is not None:
        sys.meta_path.insert(0, Finder(folder))


@cache
def found() -> Path | None:
    """The folder of the build of these sources; None if there is none, or SWITCH is 0."""
    if (builds := home()) is None or not is_dir(builds) or find_spec(NEEDED) is None:
        return None
    folder = builds / key_of(ROOT)
    return folder if is_dir(folder) else None


def is_outdated() -> bool:
    """Whether a core was compiled here, but of other sources or for another Python."""
    return (builds := home()) is not None and is_dir(builds) and found() is None


def key_of(root: Path) -> str:
    """What a build is known by: a hash of the sources, and of the Python that it is for."""
    digest = blake2b(SUFFIX.encode(), digest_size=12)
    for folder in READ:
        for file in sorted((root / folder).rglob("*.py")):
            source = file.read_bytes()
            digest.update(f"{file.relative_to(root).as_posix()} {len(source)}\n".encode())
            digest.update(source)
    return digest.hexdigest()
