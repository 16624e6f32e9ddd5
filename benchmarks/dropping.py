"""How long a commit takes that deletes the payload of trained groups: `python -m benchmarks.dropping`.

`--groups` groups of 16 responses of `--tokens` tokens, written as reports and scored, as in a run. Then they
are dropped, `--at_once` a transaction, with and without SQLite's secure_delete, which Debian has on: it
overwrites what is deleted. Milliseconds for which the event loop would stand still, median and worst.
"""

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from controller.durability.store import Store
from controller.host.stepper import DROPPED_AT_ONCE
from protocol.messages import Delta, Generated, PromptsEncoded, Score, ScoreItem, Segment

MEMBERS = range(16)


def make_store(path: Path, *, groups: int, tokens: int) -> Store:
    """One that holds so many groups, each response in one piece."""
    store = Store(path)
    frames = np.zeros(tokens, "<i4").tobytes(), np.zeros(tokens, "<f4").tobytes()
    for group in range(groups):
        with store.transaction():
            store.put_row(group, b"{}")
            store.put_frames(PromptsEncoded(((group, 1),), ()), (frames[0][:4],))
            deltas = [Delta(group, member, 0, 0, tokens, 0, "stop") for member in MEMBERS]
            store.put_frames(Generated.of(deltas), (frames[0] * 16, frames[1] * 16))
        items = [ScoreItem(member, "stop", (Segment(0, 0, tokens),)) for member in MEMBERS]
        store.fetch(Score(group, 0, tuple(items)))
        with store.transaction():
            store.settle()
    return store


def measure(path: Path, *, groups: int, tokens: int, at_once: int, overwrites: bool) -> list[float]:
    """Milliseconds of each commit."""
    store = make_store(path, groups=groups, tokens=tokens)
    store.database.execute(f"PRAGMA secure_delete = {overwrites:d}")
    taken: list[float] = []
    for first in range(0, groups, at_once):
        began = time.perf_counter()
        with store.transaction():
            store.drop(range(first, min(first + at_once, groups)))
        taken.append(1e3 * (time.perf_counter() - began))
    store.close()
    return taken


def main() -> None:
    """Print a line for each number of groups a transaction, and way of SQLite."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2300)
    parser.add_argument("--at_once", type=int, nargs="+", default=[DROPPED_AT_ONCE, 256])
    asked = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, SQLite {sqlite3.sqlite_version}")
    for at_once in asked.at_once:
        for overwrites in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                taken = measure(
                    Path(folder) / "run.db", groups=asked.groups, tokens=asked.tokens, at_once=at_once,
                    overwrites=overwrites,
                )  # fmt: skip
            way = "overwritten" if overwrites else "left"
            print(
                f"{at_once} groups a commit, what is deleted is {way}: median "
                f"{statistics.median(taken):.1f} ms, worst {max(taken):.1f} ms", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
