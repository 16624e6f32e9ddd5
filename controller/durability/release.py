"""Fingerprint of the code that decides, stored in every run.db.

Invariant: two processes with equal releases take equal decisions on equal events.
"""

import json
import platform
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from controller.config.models import Config

ROOT = Path(__file__).resolve().parents[2]
DECIDING = ("controller", "protocol", "strategies")


@cache
def release() -> dict[str, str]:
    """Versions of everything that a decision depends on.

    `sources` is a digest of the deciding packages, as this process found them: what is installed under a run
    that goes on does not decide in it.
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
    """What a core is built from, and by what: all that a replay needs beside the events.

    `config` is as written, without secrets.
    """
    return {
        "config": config.model_dump_json(),
        "run_dir": run_dir,
        "import_paths": json.dumps(import_paths),
        "release": json.dumps(release()),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"
