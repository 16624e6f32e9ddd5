"""Size and time of a run's Perfetto file: `python -m benchmarks.trace_size [--run RUN]`.

Simulates 1,024 instances with 100,000 responses (or takes a run), steps its history as a replay does, and
then writes the trace, which steps it again: what the trace takes beyond the replay is printed in seconds of
the processor, with the file's size, against the limits of docs/view.md.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.view import made
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.trace import write_trace
from controller.host.collector import rare_collections

MOST_MB, MOST_S, RESPONSES = 10.0, 5.0, 100_000  # the limits, and of how many responses


def measure(path: Path, file: Path) -> None:
    """Print both."""
    began = time.thread_time()
    verdict = replay(Recording(path))
    replay_s = time.thread_time() - began
    began = time.thread_time()
    slices = write_trace(Recording(path), str(file))
    trace_s = time.thread_time() - began
    share = RESPONSES / verdict.commands["Route"]
    size_mb, more_s = file.stat().st_size / 1e6, trace_s - replay_s
    print(
        f"{verdict.events:,} events, {verdict.commands['Route']:,} routes: the replay takes {replay_s:.1f} s "
        f"of the processor, the trace of {slices:,} slices {more_s:.1f} s more and {size_mb:.1f} MB; of "
        f"{RESPONSES:,} routes {share * more_s:.1f} s (limit {MOST_S:.0f}) and {share * size_mb:.1f} MB "
        f"(limit {MOST_MB:.0f})"
    )


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--run", default="")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, rare_collections():
        print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
        each = RESPONSES / words.instances
        path = Path(words.run) if words.run else made(Path(folder), words.instances, words.steps, each)
        measure(path, Path(folder) / "run.pftrace")
    return 0


if __name__ == "__main__":
    sys.exit(main())
