"""Time and memory to begin with millions of rows and go on after kills: `python -m benchmarks.data_start`.

Writes a file of `--rows` rows (prompt, answer, level; 150 bytes that hardly compress), then in a process of
its own: opens it and reads the first 64 shuffled rows, and more; then reads as many by processes that are
killed one after the other, each going on from the last one's cursor: the rows must be the same. Prints JSON.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from controller.config.models import Config
from controller.data.prompts import Cursor, PromptSource
from controller.data.sources import Sources

CHUNK_ROWS = 250_000
READ_AT_ONCE = 64


def write(path: Path, rows: int, group: int) -> None:
    """The file, a chunk at a time."""
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            for n in range(rows):
                file.write(f'{{"prompt":"{n} {text(n)}","answer":"{n % 97}","level":{n % 5}}}\n')
        return
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("prompt", pa.string()), ("answer", pa.string()), ("level", pa.int64())])
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, rows, CHUNK_ROWS):
            numbers = range(first, min(rows, first + CHUNK_ROWS))
            columns = [
                [f"{n} {text(n)}" for n in numbers],
                [str(n % 97) for n in numbers],
                [n % 5 for n in numbers],
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=group)


def text(n: int) -> str:
    """As long as a short question."""
    return hashlib.sha512(str(n).encode()).hexdigest()


def peak_mb() -> float:
    """Most memory that this process has had; getrusage would count what its parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def child(path: str, read: int, kills: int) -> None:
    """What is measured; forks for every kill."""
    before = peak_mb()
    began = time.monotonic()
    config = Config.model_validate({"data": {"path": path}})
    sources = Sources(config)
    opened = time.monotonic() - began
    first, _ = sources.read(READ_AT_ONCE)
    figures = {
        "open_s": round(opened, 2),
        "first_rows_s": round(time.monotonic() - began, 2),
        "before_mb": round(before),
        "peak_mb_after_first_rows": round(peak_mb()),
    }
    began = time.monotonic()
    digest = hashlib.sha256(b"".join(first))
    rows = len(first)
    while rows < read:
        some, _ = sources.read(min(READ_AT_ONCE, read - rows))
        rows += len(some)
        digest.update(b"".join(some))
    figures |= {"rows_per_s": round(rows / (time.monotonic() - began)), "peak_mb_after_all": round(peak_mb())}
    killed, resume_s = with_kills(config, read, kills)
    figures |= {
        "kills": kills,
        "longest_resume_s": round(resume_s, 2),
        "is_cursor_exact": killed == digest.hexdigest(),
    }
    print(json.dumps(figures))


def with_kills(config: Config, read: int, kills: int) -> tuple[str, float]:
    """Digest of as many rows, by processes that are killed one after the other; the longest that one took
    until its first row."""
    chance = random.Random(0)
    ends = [*sorted(chance.sample(range(1, read), kills)), read]
    digest, cursor, longest = hashlib.sha256(), Cursor(), 0.0
    for end in ends:
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            began = time.monotonic()
            source = PromptSource(config)
            source.seek(cursor)
            with os.fdopen(writer, "wb") as pipe:
                for number in range(end - cursor.given):
                    row = source.read(1)[0]
                    if not number:
                        pipe.write(json.dumps(time.monotonic() - began).encode() + b"\n")
                    pipe.write(row + b"\n")
                pipe.write(json.dumps(source.cursor).encode() + b"\n")
                pipe.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            took, *rows, at = pipe.read().splitlines()
        os.waitpid(pid, 0)
        digest.update(b"".join(rows))
        cursor, longest = Cursor(*json.loads(at)), max(longest, json.loads(took))
    return digest.hexdigest(), longest


def main() -> None:
    """Write the file, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--group", type=int, default=CHUNK_ROWS, help="rows of a row group")
    parser.add_argument("--format", choices=["parquet", "jsonl"], default="parquet")
    parser.add_argument("--read", type=int, default=100_000, help="rows that are read")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.read, asked.kills)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"rows.{asked.format}")
        write(path, asked.rows, asked.group)
        print(f"{asked.rows:,} rows, {path.stat().st_size / 1e9:.2f} GB of {asked.format}", flush=True)
        command = [sys.executable, "-m", "benchmarks.data_start", "--child", str(path)]
        subprocess.run([*command, "--read", str(asked.read), "--kills", str(asked.kills)], check=True)


if __name__ == "__main__":
    main()
