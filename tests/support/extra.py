"""What an extra of pyproject.toml brings along beside what everybody has, as it is installed here."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def added_by(extra: str) -> dict[str, int]:
    """Bytes of each package that only this extra brings, without bytecode."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    base = closure(project["dependencies"])
    wanted = closure(project["optional-dependencies"][extra])
    return {name: size_of(name) for name in sorted(wanted - base)}


def closure(words: Iterable[str]) -> set[str]:
    """The packages of these requirements, and all that they need."""
    found: set[str] = set()
    waiting = [Requirement(word) for word in words]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += [Requirement(word) for word in distribution(name).requires or ()]
    return found


def size_of(name: str) -> int:
    """Bytes of a package as it lies there, without bytecode."""
    files = distribution(name).files or []
    paths = [Path(str(file.locate())) for file in files if "__pycache__" not in file.parts]
    return sum(path.stat().st_size for path in paths if path.is_file())
