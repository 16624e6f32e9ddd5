"""The releases of the code that made a run, and digests of the user's files, which every run.db stores.

Invariant: two processes with equal releases take equal decisions on equal events.
"""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from controller.config.models import Config
from controller.siblings import refuse_strangers
from protocol.errors import OtherRelease
from protocol.importing import find_file

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("controller", "protocol", "strategies")
COMPARED = {
    "data": "prompts", "reward": "rewards", "agent": "rewards", "rollout": "responses", "trainer": "steps",
    "staleness": "figures", "evaluation": "evaluations",
}  # fmt: skip
"""Sections that name Python files of the user, and the figures that a changed file may make incomparable. The
initial model is made once, so a change of `model.factory` changes nothing."""
RELEASES = "releases"
"""Fact: the parts of the run, in order. `release`, the fact that older releases write, is of the first."""


class ReleasePart(NamedTuple):
    """The events of a run that one release decided: from `first` up to the next part."""

    first: int
    made: dict[str, str]  # `here` there; of older releases `release` alone


@cache
def release() -> dict[str, str]:
    """The versions of everything that a decision depends on.

    `sources` is a digest of the deciding packages as this process found them at its start: what is installed
    over them during a run does not decide in it.
    """
    return {
        "staleflow": _version("staleflow"),
        "sources": _digest(*DECIDING),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
    }


@cache
def here() -> dict[str, str]:
    """`release`, a digest of the sources that compute (`workers`), and the `commit` of git."""
    return {**release(), "workers": _digest("workers"), "commit": _commit()}


def _commit() -> str:
    """What `launch.py --version` names; "" where the `install` of an embedding program hides ours."""
    with suppress(ImportError):
        refuse_strangers("install")
        from install.project import commit

        return commit()
    return ""


def _digest(*packages: str) -> str:
    digest = blake2b(digest_size=8)
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def parts_with(parts: Sequence[ReleasePart], *, first: int) -> str:
    """The parts of a run, as JSON, if this release goes on with it at event `first`."""
    if not parts or differences(parts[-1].made, deciding=False):
        parts = [*parts, ReleasePart(first, here())]
    return json.dumps(parts)


def parts_of(told: Sequence[object], first: dict[str, str]) -> list[ReleasePart]:
    """The parts that run.db tells of; `first`: the release that began the run, all that older ones tell."""
    found = []
    for one in told:
        match one:
            case [int(number), dict(made)]:
                found.append(ReleasePart(number, made))
    return found or [ReleasePart(1, first)]


def differences(made: Mapping[str, str], *, deciding: bool = True) -> str:
    """How another release differs from the one here; "" if it does not.

    `deciding`: in what decisions depend on; else also in what workers compute.
    """
    known = dict(release()) if deciding else {**release(), "workers": here()["workers"]}
    if "workers" not in made:  # older releases do not tell
        known.pop("workers", None)
    different = [name for name in known if made.get(name) != known[name]]
    if different and made.get("commit") and here()["commit"] not in ("", made["commit"]):
        different.insert(0, "commit")
    return ", ".join(f"{name} {made.get(name)} there and {here()[name]} here" for name in different)


def differences_of(parts: Sequence[ReleasePart], last: int) -> str:
    """How the releases that decided the `last` events of a run differ from the one here; "" if none does."""
    if len(parts) == 1:
        return differences(parts[0].made)
    ends = [*(part.first - 1 for part in parts[1:]), last]
    told = [(part.first, end, differences(part.made)) for part, end in zip(parts, ends, strict=True)]
    return "; ".join(f"in events {first} to {end} {text}" for first, end, text in told if text)


def known_config(text: str, what: str, other: str) -> Config:
    """The configuration in `text`; `what` names it, `other` tells the release that wrote it.

    Raises: OtherRelease if this release does not know it.
    """
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise OtherRelease(
            f"{what} does not fit this release: {'.'.join(map(str, first['loc']))}: {first['msg']}. The run "
            "was made by another release, which reads it: "
            f"{other or 'it has the same numbers as this one'}."
        ) from error


def facts_of(config: Config, *, run_dir: str, import_paths: tuple[str, ...]) -> dict[str, str]:
    """The configuration and the release that a core is built from: all that a replay needs beside the events.

    `config` is as written, without secrets.
    """
    return {
        "config": config.model_dump_json(),
        "run_dir": run_dir,
        "import_paths": json.dumps(import_paths),
        "release": json.dumps(release()),
        RELEASES: parts_with((), first=1),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": own_files(config),
    }


def facts_again(config: Config, parts: Sequence[ReleasePart], *, last: int) -> dict[str, str]:
    """The facts that may have changed where a run goes on behind event `last`."""
    return {"files": own_files(config), RELEASES: parts_with(parts, first=last + 1)}


def changed_release(parts: Sequence[ReleasePart]) -> list[str]:
    """A warning if the release here is not the one that made the newest part of a run."""
    if not parts or not (text := differences(parts[-1].made, deciding=False)):
        return []
    return [
        f"The run was made by another release ({text}). This one decides every event so far as that one did, "
        "and goes on. Figures from before and after may not be comparable, where the two compute otherwise. "
        'To finish with the other release instead: docs/durability.md, "Another release".'
    ]


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
