"""Where a run goes on in another place: which of its paths name the files that they named before.

Invariants: a path that leads from the run directory to the same place as before is the same; data that lies
elsewhere is the same if all its files have the bytes that they had.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from controller.config.models import Config
from controller.config.strategies import moved_folder, with_folder
from controller.data import fingerprints
from controller.data.formats import format_of


def as_lies_now(was: Config, now: Config, *, places: tuple[str, str], data: Sequence[Any]) -> dict[str, Any]:
    """The old configuration with the paths that its files have now, as a tree.

    `places`: the run directory then and now; `data`: the fingerprints of its sources then.
    """
    tree: dict[str, Any] = with_folder(was.model_dump(mode="json"), *moved_folder(*places))
    pairs = [*zip(was.data.each, now.data.each, strict=False)]
    if len(was.data.each) != len(now.data.each) or len(data) != len(pairs):
        return tree
    for number, ((_, before), (_, after)) in enumerate(pairs):
        if before.path != after.path and _is_same(data[number], after.path):
            section = tree["data"]["sources"][number] if was.data.sources else tree["data"]
            section["path"] = after.path
    return tree


def _is_same(was: Any, path: str) -> bool:
    """Whether the files at a path are those of this fingerprint."""
    if not isinstance(was, Mapping) or not was.get("files"):
        return False
    try:
        files = format_of(path)[1]
        return bool(files) and fingerprints.difference(was, fingerprints.of_files(files, was["rows"])) is None
    except (OSError, KeyError):
        return False
