"""The kept samples of a run in its database: groups that were trained, with all that was said.

Invariants: a sample is one record, whole or not at all, with a checksum; together they take no more than the
room that they are given: the oldest steps go first; a sample that is in memory alone is not kept.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zlib import crc32

from controller.core.state.kept_samples import KeptGroup
from controller.durability.damage import damaged, is_whole
from protocol.ids import TrajectoryId
from protocol.messages import Piece, prompt_pieces, response_pieces

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    step INTEGER NOT NULL, group_id INTEGER NOT NULL, facts TEXT NOT NULL, row BLOB NOT NULL,
    prompt BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL, size INTEGER NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (step, group_id));
"""
OVERHEAD_BYTES = 100  # of a record, beside its columns


class KeptSample(NamedTuple):
    """One group as it was trained. Tokens (int32) and logprobs (float32) are of all responses, end to end."""

    step: int  # whose batch it was in: it made this policy version
    group: int
    facts: dict[str, Any]  # `why`, `parts` by name, and `items`: fields of TrainItem by name
    row: bytes  # JSON, as the data source gave it
    prompt: bytes  # of the group; b"" if it is an agent's, whose episodes begin with given tokens
    tokens: bytes
    logprobs: bytes  # of sampled tokens alone


def keep_samples(
    db: sqlite3.Connection,
    step: int,
    groups: Iterable[KeptGroup],
    *,
    piece: Callable[[Piece], bytes | memoryview],
    most_bytes: int,
) -> None:
    """Write these, inside a transaction, and delete the oldest steps if all take more than `most_bytes`.

    `piece` fetches payload. Raises: what it raises, before anything is written.
    """
    records = [_record(step, group, piece) for group in groups]
    db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", records)
    (size,) = db.execute("SELECT coalesce(sum(size), 0) FROM samples").fetchone()
    while size > most_bytes:
        (oldest,) = db.execute("SELECT min(step) FROM samples").fetchone()
        (freed,) = db.execute("SELECT sum(size) FROM samples WHERE step = ?", (oldest,)).fetchone()
        db.execute("DELETE FROM samples WHERE step = ?", (oldest,))
        size -= freed


def sample_keys(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """(step, group) of all that are kept, oldest first."""
    return db.execute("SELECT step, group_id FROM samples ORDER BY step, group_id").fetchall()


def read_sample(db: sqlite3.Connection, path: str, step: int, group: int) -> KeptSample | None:
    """One of them; None if it was deleted meanwhile. Raises: RunError if it has changed on the disk."""
    query = (
        "SELECT facts, row, prompt, tokens, logprobs, checksum FROM samples WHERE step = ? AND group_id = ?"
    )
    found = db.execute(query, (step, group)).fetchone()
    if found is None:
        return None
    *fields, checksum = found
    if not is_whole(checksum, _checksum, step, group, *fields):
        raise damaged(path, f"the sample of group {group}, step {step}, has changed since it was written")
    facts, *blobs = fields
    return KeptSample(step, group, json.loads(facts), *blobs)


def _record(step: int, kept: KeptGroup, piece: Callable[[Piece], bytes | memoryview]) -> tuple[Any, ...]:
    row = bytes(piece(Piece("row", kept.group)))
    prompt = b"".join(bytes(piece(one)) for one in prompt_pieces(kept.group, kept.items[0].segments))
    parts: dict[str, bytearray] = {"tokens": bytearray(), "logprobs": bytearray()}
    for item in kept.items:
        for kind in ("tokens", "logprobs"):
            for wanted in response_pieces(kind, TrajectoryId(item.group, item.member), item.segments):
                parts[kind] += piece(wanted)
    facts = {
        "why": kept.why,
        "parts": {name: list(values) for name, values in kept.parts},
        "items": [item._asdict() for item in kept.items],
    }
    fields = (json.dumps(facts), row, prompt, bytes(parts["tokens"]), bytes(parts["logprobs"]))
    size = OVERHEAD_BYTES + sum(map(len, fields))
    return (step, kept.group, *fields, size, _checksum(step, kept.group, *fields))


def _checksum(step: int, group: int, facts: str, *blobs: bytes) -> int:
    found = crc32(f"{step} {group} {facts}".encode())
    for blob in blobs:
        found = crc32(blob, found)
    return found
