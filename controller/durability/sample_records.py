"""The kept samples of a run in its database: groups that were trained, with everything about them.

Invariants: a sample is one record, whole or not at all, with a checksum; together they take no more than
`most_bytes`: the oldest steps are deleted first; a sample that is in memory alone is not kept.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from math import fsum
from typing import Any, NamedTuple
from zlib import crc32

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.core.state.kept_samples import KeptGroup
from controller.durability.damage import damaged, is_whole
from protocol.ids import TrajectoryId
from protocol.messages import GIVEN, Piece, TrainStepFinished, prompt_pieces, response_pieces

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    step INTEGER NOT NULL, group_id INTEGER NOT NULL, facts TEXT NOT NULL, row BLOB NOT NULL,
    prompt BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL, trained BLOB NOT NULL,
    weights BLOB NOT NULL, size INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (step, group_id));
CREATE INDEX IF NOT EXISTS sample_sizes ON samples (step, size);
"""
"""The index is for sums of sizes: from the table itself SQLite reads every page of every sample for one."""
OVERHEAD_BYTES = 100  # what a record takes beside its columns


class Corrections(NamedTuple):
    """What the trainer computed for the sampled tokens of one trajectory: float32, one number per token."""

    trained: bytes  # logprobs under the weights before the step; nan where there is none
    weights: bytes  # what the off-policy corrections multiplied the loss by; 0: left out


NONE: Mapping[TrajectoryId, Corrections] = {}


class KeptSample(NamedTuple):
    """One group as it was trained. Tokens (int32) and numbers (float32) are of all responses, end to end."""

    step: int  # its batch made this policy version; of a held-out group: the step after its version
    group: int
    facts: dict[str, Any]  # `why`, `parts` by name, and `items`: fields of TrainItem by name
    row: bytes  # JSON, as the data source gave it
    prompt: bytes  # of the group; b"" if it is an agent's, whose episodes begin with given tokens
    tokens: bytes
    logprobs: bytes  # of sampled tokens only, like the next two
    trained: bytes = b""  # as `Corrections`; b"" where the trainer reported nothing
    weights: bytes = b""


def keep_samples(
    db: sqlite3.Connection,
    step: int,
    groups: Iterable[KeptGroup],
    *,
    piece: Callable[[Piece], bytes | memoryview],
    most_bytes: int,
    corrections: Mapping[TrajectoryId, Corrections] = NONE,
) -> None:
    """Write these, inside a transaction, and delete the oldest steps if all take more than `most_bytes`.

    `piece` fetches payload; a group is kept without `corrections` unless they are of all its items.
    Raises: what `piece` raises, before anything is written.
    """
    records = [_record(step, group, piece, corrections) for group in groups]
    db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", records)
    (size,) = db.execute("SELECT coalesce(sum(size), 0) FROM samples").fetchone()
    while size > most_bytes:
        (oldest,) = db.execute("SELECT min(step) FROM samples").fetchone()
        (freed,) = db.execute("SELECT sum(size) FROM samples WHERE step = ?", (oldest,)).fetchone()
        db.execute("DELETE FROM samples WHERE step = ?", (oldest,))
        size -= freed


def drop_samples(db: sqlite3.Connection, steps: int, evaluated: Collection[object]) -> None:
    """Delete samples of train steps after `steps`, and of evaluations of other versions than `evaluated`."""
    undone = [
        (step, group)
        for step, group in sample_keys(db)
        if (step - 1 not in evaluated if group >= FIRST_EVALUATION_GROUP else step > steps)
    ]
    db.executemany("DELETE FROM samples WHERE step = ? AND group_id = ?", undone)


def sample_keys(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """(step, group) of all that are kept, oldest first."""
    return db.execute("SELECT step, group_id FROM samples ORDER BY step, group_id").fetchall()


def read_sample(db: sqlite3.Connection, path: str, step: int, group: int) -> KeptSample | None:
    """One of them; None if it was deleted meanwhile. Raises: RunError if it has changed on the disk."""
    query = (
        "SELECT facts, row, prompt, tokens, logprobs, trained, weights, checksum FROM samples "
        "WHERE step = ? AND group_id = ?"
    )
    found = db.execute(query, (step, group)).fetchone()
    if found is None:
        return None
    *fields, checksum = found
    if not is_whole(checksum, _checksum, step, group, *fields):
        raise damaged(path, f"the sample of group {group}, step {step}, has changed since it was written")
    facts, *blobs = fields
    return KeptSample(step, group, json.loads(facts), *blobs)


def advantages_of(item: Mapping[str, Any]) -> list[float]:
    """The advantages of the sampled tokens of one of `facts["items"]`, by turn where turns have some."""
    outcomes = item.get("outcomes") or [item["outcome"]] * len(item["segments"])
    runs = zip(item["segments"], outcomes, strict=True)
    return [outcome for (_, version, count), outcome in runs if version != GIVEN for _ in range(count)]


def mean_advantage(item: Mapping[str, Any]) -> float:
    """The mean over sampled tokens of one of `facts["items"]`; 0 if turns have advantages and no tokens."""
    if not item.get("outcomes"):
        return float(item["outcome"])
    found = advantages_of(item)
    return fsum(found) / max(1, len(found))


def corrections_of(message: TrainStepFinished, frames: tuple[bytes, ...]) -> dict[TrajectoryId, Corrections]:
    """The corrections in a report of the trainer, by trajectory."""
    return {
        TrajectoryId(group, stretches[0].member): Corrections(*(stretch.data for stretch in stretches))
        for group, stretches in message.kept(frames)
    }


def _record(
    step: int,
    kept: KeptGroup,
    piece: Callable[[Piece], bytes | memoryview],
    corrections: Mapping[TrajectoryId, Corrections],
) -> tuple[Any, ...]:
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
    found = [corrections.get(TrajectoryId(item.group, item.member)) for item in kept.items]
    told = [one for one in found if one is not None]
    trained, weights = map(b"".join, zip(*told, strict=True)) if len(told) == len(found) else (b"", b"")
    fields = (
        json.dumps(facts), row, prompt, bytes(parts["tokens"]), bytes(parts["logprobs"]), trained, weights,
    )  # fmt: skip
    size = OVERHEAD_BYTES + sum(map(len, fields))
    return (step, kept.group, *fields, size, _checksum(step, kept.group, *fields))


def _checksum(step: int, group: int, facts: str, *blobs: bytes) -> int:
    found = crc32(f"{step} {group} {facts}".encode())
    for blob in blobs:
        found = crc32(blob, found)
    return found
