"""The versions of the code that decides, and digests of the user's files, which every run.db stores.

Invariant: two processes with equal releases take equal decisions on equal events.
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from controller.config.models import Config
from protocol.importing import find_file

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("controller", "protocol", "strategies")
COMPARED = {
    "data": "prompts", "reward": "rewards", "agent": "rewards", "rollout": "responses", "trainer": "steps",
    "staleness": "figures", "evaluation": "evaluations",
}  # fmt: skip
"""Sections that name Python files of the user, and the figures that a changed file may make incomparable. The
initial model is made once, so a change of `model.factory` changes nothing."""


@cache
def release() -> dict[str, str]:
    """The versions of everything that a decision depends on.

    `sources` is a digest of the deciding packages as this process found them at its start: what is installed
    over them during a run does not decide in it.
    """
    digest = blake2b(digest_size=8)
    for package in DECIDING:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return {
        "staleflow": _version("staleflow"),
        "sources": digest.hexdigest(),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
    }


def facts_of(config: Config, *, run_dir: str, import_paths: tuple[str, ...]) -> dict[str, str]:
    """The configuration and the release that a core is built from: all that a replay needs beside the events.

    `config` is as written, without secrets.
    """
    return {
        "config": config.model_dump_json(),
        "run_dir": run_dir,
        "import_paths": json.dumps(import_paths),
        "release": json.dumps(release()),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": own_files(config),
    }


def own_files(config: Config) -> str:
    """Digests of the user's Python files that a configuration names, by key and file, as JSON.

    Modules that these files import are left out.
    """
    found: dict[str, str] = {}
    for section in COMPARED:
        for key, text in _texts(getattr(config, section).model_dump(mode="json"), section):
            place, _, name = text.rpartition(":")
            place = place if name.isidentifier() else text  # a script of `agent.command`
            if place.endswith(".py") and (path := find_file(place)):
                with suppress(OSError):
                    found[f"{key} {place}"] = blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return json.dumps(found)


def changed_files(known: Mapping[str, str], config: Config) -> list[str]:
    """A warning for each file whose digest differs from `known`: files that `known` lacks are left out."""
    keys: dict[str, list[str]] = {}
    now: dict[str, str] = json.loads(own_files(config))
    for name in (name for name, digest in now.items() if known.get(name, digest) != digest):
        key, place = name.split(" ", 1)
        keys.setdefault(place, []).append(key)
    return [
        f"{place} ({', '.join(of)}) has other content than the run used before. The run goes on with it, and "
        f"{COMPARED[of[0].partition('.')[0]]} from before and after may not be comparable. If that is not "
        "wanted, stop the run, put the file back as it was, and give the same command; or start over with "
        "run.resume=never."
        for place, of in keys.items()
    ]


def _texts(tree: object, key: str) -> Iterator[tuple[str, str]]:
    """Each text in a part of a configuration, with its key."""
    if isinstance(tree, str):
        yield key, tree
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _texts(value, f"{key}.{name}")
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, key)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"
