"""What reports with kept sets cost the controller's journal: `python -m benchmarks.kept_reports`.

Instances say `--responses` deltas of `--tokens` tokens per report, each token drawn from `--kept` others; the
store writes each report in a transaction. CPU time per delta, with sampling that cuts and without; no model.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from controller.durability.store import Store
from protocol.messages import Delta, Generated


def report(number: int, responses: int, tokens: int, kept: int) -> tuple[Generated, tuple[bytes, ...]]:
    """The report of this number; `kept` 0: nothing was cut off."""
    deltas = [Delta(group, 0, 0, number * tokens, tokens, 0, "") for group in range(responses)]
    count = responses * tokens
    frames = [np.arange(count, dtype="<i4").tobytes(), np.zeros(count, "<f4").tobytes()]
    if not kept:
        return Generated.of(deltas), tuple(frames)
    frames += [np.full(count, kept, "<i4").tobytes(), np.tile(np.arange(kept, dtype="<i4"), count).tobytes()]
    return Generated.of(deltas, (tokens * kept,) * responses), tuple(frames)


def measure(folder: Path, *, reports: int, responses: int, tokens: int, kept: int) -> tuple[float, int]:
    """Microseconds of CPU per delta, and records in the database."""
    store = Store(folder / f"{kept}.db")
    with store.transaction():
        for group in range(responses):
            store.put_row(group, b"{}")
    said = [report(number, responses, tokens, kept) for number in range(reports)]
    began = time.process_time()
    for message, frames in said:
        with store.transaction():
            store.put_frames(message, frames)
    took_s = time.process_time() - began
    query = "SELECT (SELECT count(*) FROM chunks) + (SELECT count(*) FROM payload WHERE kind != 'row')"
    (records,) = store.database.execute(query).fetchone()
    store.close()
    return took_s / reports / responses * 1e6, records


def main() -> None:
    """Print a line for sampling from the whole vocabulary, and one for kept sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reports", type=int, default=60)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--kept", type=int, default=50)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kept in (0, asked.kept):
            sizes = {"reports": asked.reports, "responses": asked.responses, "tokens": asked.tokens}
            cost_us, records = measure(Path(folder), **sizes, kept=kept)
            name = f"{kept} tokens kept" if kept else "nothing cut off"
            print(
                f"{name}: {cost_us:.1f} us a delta, {records} records of {asked.reports} reports", flush=True
            )


if __name__ == "__main__":
    main()
