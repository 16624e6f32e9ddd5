"""Where a run goes on in another place: which of its paths name the files that they named before.

Invariants: a path that leads from the run directory to the same place as before is the same; data that lies
elsewhere is the same if all its files have the bytes that they had.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.config.models import Config
from controller.data import fingerprints
from controller.data.formats import format_of

LEAST_PARTS = 2  # of a folder that has moved: never the root of the file system


def as_lies_now(was: Config, now: Config, *, places: tuple[str, str], data: Sequence[Any]) -> dict[str, Any]:
    """The old configuration with the paths that its files have now, as a tree.

    `places`: the run directory then and now; `data`: the fingerprints of its sources then.
    """
    tree: dict[str, Any] = _with_folder(was.model_dump(mode="json"), *_moved_folder(*places))
    pairs = [*zip(was.data.each, now.data.each, strict=False)]
    if len(was.data.each) != len(now.data.each) or len(data) != len(pairs):
        return tree
    for number, ((_, before), (_, after)) in enumerate(pairs):
        if before.path != after.path and _is_same(data[number], after.path):
            section = tree["data"]["sources"][number] if was.data.sources else tree["data"]
            section["path"] = after.path
    return tree


def _moved_folder(then: str, now: str) -> tuple[str, str]:
    """The outermost folder around a run directory that was moved or renamed, by its old and new path."""
    old, new = Path(then).parts, Path(now).parts
    while min(len(old), len(new)) > LEAST_PARTS and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return str(Path(*old)), str(Path(*new))


def _with_folder(tree: Any, old: str, new: str) -> Any:
    """The tree with `new` in place of `old` where a text begins with this folder."""
    if isinstance(tree, Mapping):
        return {key: _with_folder(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_folder(value, old, new) for value in tree]
    if isinstance(tree, str) and (tree == old or tree.startswith(f"{old}/")):
        return f"{new}{tree.removeprefix(old)}"
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
