"""How fast runs are replayed: `python -m benchmarks.replay_speed RUN [RUN ...]`.

Replays each run as `launch.py replay` does, and prints the processor's time by event and by command: an
event that starts many responses has as many commands, so that events per second differ from run to run. What
the fingerprints of all commands take, which a run takes as well, is made once more and printed apart.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from controller.durability.fingerprint import fingerprint
from controller.durability.recording import Recording
from controller.durability.replay import Replayed, replay


def measure(path: Path) -> bool:
    """Print the figures of one run; whether it is the same bit for bit."""
    marked_s = 0.0

    def mark(turn: Replayed) -> None:
        nonlocal marked_s
        began = time.thread_time()
        fingerprint(turn.commands)
        marked_s += time.thread_time() - began

    with Recording(path) as recording:
        began = time.thread_time()
        verdict = replay(recording, on_turn=mark)
        took_s = time.thread_time() - began - marked_s
    commands = sum(verdict.commands.values())
    print(
        f"{path}: {verdict.events:,} events, {commands:,} commands: {took_s:.1f} s of the processor, "
        f"{verdict.events / took_s:,.0f} events/s, {1e6 * took_s / verdict.events:.0f} us an event, "
        f"{1e6 * took_s / commands:.0f} us a command, {'equal' if verdict.is_equal else 'NOT EQUAL'}; "
        f"fingerprints {1e6 * marked_s / commands:.1f} us a command",
        flush=True,
    )
    return verdict.is_equal


def main() -> int:
    """1 if a run is not the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    words = parser.parse_args()
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}", flush=True)
    return 0 if min([measure(path) for path in words.runs]) else 1


if __name__ == "__main__":
    sys.exit(main())
