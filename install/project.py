"""The release of the project, and the least versions of packages that it works with.

Invariants: standard library only; pyproject.toml says both, and where there is none beside the code
(installed without `-e`), the records of that installation do.
"""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "pyproject.toml"
NAME = "staleflow"
LEAST = re.compile(r"([\w.-]+)[^;]*?>=\s*(\d+(?:\.\d+)*)")
"""A requirement -> the name, and the least version."""
COMMIT_CHARS = 12
GIT_S = 10.0  # for a disk that is slow
OF_EXTRA = re.compile(r"""extra == ["']([^"']+)["']""")


def read_project() -> dict[str, Any]:
    """All of pyproject.toml, which must be there."""
    return tomllib.loads(FILE.read_text())


def has_folder() -> bool:
    """Whether this code lies in the project's folder, into which launch.py installs environments."""
    return FILE.exists()


def launcher() -> str:
    """What a user types to start launch.py from the working directory, quoted for a shell."""
    if not has_folder():
        return "staleflow"
    return "python3 launch.py" if Path.cwd() == ROOT else f"python3 {shlex.quote(str(ROOT / 'launch.py'))}"


def version() -> str:
    """The version of StaleFlow."""
    if has_folder():
        return read_project()["project"]["version"]
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def commit() -> str:
    """Start of the git commit that is checked out here or was installed; "" if that is not known.

    Changes that were made since are not seen.
    """
    command = ["git", "--git-dir", str(ROOT / ".git"), "rev-parse", "--verify", "--quiet", "HEAD"]
    found = ""
    if has_folder():
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=GIT_S)
            found = done.stdout if done.returncode == 0 else ""
    else:
        found = _installed_from().get("vcs_info", {}).get("commit_id", "")
    return found[:COMMIT_CHARS]


def with_extras(extras: Sequence[str]) -> str:
    """What `pip install` takes, after `-e` if there is a folder, to install the project with these extras."""
    brackets = f"[{','.join(extras)}]" if extras else ""  # pip refuses empty ones
    return f"{ROOT}{brackets}" if has_folder() else f"{NAME}{brackets}{_source()}"


def _source() -> str:
    """` @ ` and the address that the project was installed from; "" if that is not known."""
    told = _installed_from()
    if not (address := told.get("url")):
        return ""
    controlled = told.get("vcs_info")
    return f" @ {controlled['vcs']}+{address}@{controlled['commit_id']}" if controlled else f" @ {address}"


def _installed_from() -> dict[str, Any]:
    """What direct_url.json (PyPA) says of the source of the installation; empty if there is none."""
    try:
        return json.loads(metadata.distribution(NAME).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return {}


def outdated(extras: Sequence[str]) -> list[str]:
    """Packages of the base and of the extras that are older here than the project works with, in words.

    A package that is not here, or does not say its version (0.0.0 says nothing), is not among them.
    """
    found = []
    for requirement in dict.fromkeys(_requirements(extras)):
        if not (least := LEAST.match(requirement)):
            continue
        there = _version_here(least[1])
        if () < _numbers(there) < _numbers(least[2]):
            found.append(f"{least[1]}>={least[2]} ({there} is there)")
    return found


def _requirements(extras: Sequence[str]) -> Iterator[str]:
    if has_folder():
        told = read_project()["project"]
        yield from told["dependencies"]
        for extra in extras:
            yield from told["optional-dependencies"].get(extra, ())
        return
    for requirement in metadata.requires(NAME) or ():
        of = OF_EXTRA.search(requirement)
        if of is None or of[1] in extras:
            yield requirement


def _version_here(name: str) -> str:
    """The version of an installed package; "" if there is none, or it does not say."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, without zeros at the end, and without what marks a build or a candidate."""
    written = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in written[0].split(".")] if written else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
