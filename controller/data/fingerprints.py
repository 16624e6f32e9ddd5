"""Fingerprints of data, by which a resumed run notices that its data was changed.

Invariant: a file of up to WHOLE_BYTES is read whole; of a larger one only its ends and evenly spaced blocks
are read, so that 10 GB take a fraction of a second, but an edit between them that keeps the size is missed.
"""

import json
import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

WHOLE_BYTES = 64 << 20
BLOCK_BYTES = 64 << 10
BLOCKS = 256  # of a file that is not read whole
LOOKED_AT = 64  # rows of a table without a file

Fingerprint = dict[str, Any]  # rows: how many; files: path -> [bytes, digest]; digest: of rows without files


def of_files(paths: list[str], rows: int) -> Fingerprint:
    """The fingerprint of a table in these files. Raises: OSError."""
    return {"rows": rows, "files": {path: of_file(path) for path in paths}}


def of_file(path: str) -> list[object]:
    """[bytes, digest] of a file. Raises: OSError."""
    digest = blake2b(digest_size=16)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            for number in range(BLOCKS):
                file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
                digest.update(file.read(BLOCK_BYTES))
    return [size, digest.hexdigest()]


def of_rows(row: Callable[[int], object], count: int, *, looked_at: int = LOOKED_AT) -> Fingerprint:
    """The fingerprint of a table without a file, by `looked_at` evenly spaced rows and the last one."""
    places = {count * number // looked_at for number in range(looked_at)} | {count - 1} if count else ()
    text = json.dumps([row(place) for place in sorted(places)], default=str, sort_keys=True)
    return {
        "rows": count,
        "files": {},
        "digest": blake2b(text.encode(errors="replace"), digest_size=16).hexdigest(),
    }


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """How a source has changed, in words; None if it has not."""
    after = now.get("files", {})
    before = _under_names_of(after, was.get("files", {}))
    if set(before) != set(after) and len(before) + len(after) > 2:
        gone, new = sorted(set(before) - set(after)), sorted(set(after) - set(before))
        parts = [f"{gone[0]} is gone" if gone else "", f"{new[0]} is new" if new else ""]
        return f"{' and '.join(filter(None, parts))}, of {len(before)} files then"
    for path, (size, digest) in before.items():
        now_size, now_digest = after.get(path, (size, digest))
        if now_size != size:
            word = "was emptied" if not now_size else "was shortened" if now_size < size else "has grown"
            return f"{path} {word}: {size:,} bytes then, {now_size:,} now"
        if now_digest != digest:
            return f"{path} has other content in the same {size:,} bytes"
    if was.get("rows") != now.get("rows"):
        return f"it has {now.get('rows'):,} rows, and had {was.get('rows'):,}"
    return "its rows are others" if was.get("digest") != now.get("digest") else None


def _under_names_of(after: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """`before` under the paths of `after`: a file may have another name, a folder of files another place."""
    if len(before) == len(after) == 1:
        return dict(zip(after, before.values(), strict=True))
    if set(before) == set(after) or len(before) != len(after):
        return before
    places = _within_folder(after)
    names = {name: before[path] for name, path in _within_folder(before).items()}
    return {path: names[name] for name, path in places.items()} if set(names) == set(places) else before


def _within_folder(files: Mapping[str, Any]) -> dict[str, str]:
    """Paths by their names within the folder that all of them are in."""
    folder = os.path.commonpath(files)
    return {os.path.relpath(path, folder): path for path in files}
