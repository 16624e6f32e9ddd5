"""How soon the sandbox ends what it must end: `python -m benchmarks.sandbox_limits [--sandbox limits]`.

Runs programs that use up what there is, one after the other, and prints the seconds until each ended,
by which limit, and whether processes of it are left afterwards. Run it as root and as another user.
"""

import argparse
import asyncio
import ctypes
import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from workers.sandbox.chosen_box import Choice, open_box
from workers.sandbox.job import Job, ProgramLimits

PR_SET_CHILD_SUBREAPER = 36
LIMITS = ProgramLimits(cpu_s=1, wall_s=10, memory_mb=256, processes=32, output_bytes=1 << 20, file_mb=1)
OUTPUT = "import sys\nfor _ in range(1024): sys.stdout.write('x' * (1 << 20))"
CHILDREN = "import os, time\nfor _ in range(8):\n  if not os.fork():\n    os.setsid(); time.sleep(999)\n"
READ = "open({path!r}).read()\nprint('come through')"
DIALS = "import socket\nsocket.create_connection(('{host}', {port}), 2)\nprint('come through')"


class Case(NamedTuple):
    """A program, and what ends it."""

    name: str
    source: str
    expected: str  # the limit, or "" where the program has to fail by itself


def cases(port: int) -> list[Case]:
    """What the machine must survive; `port` is open on it."""
    return [
        Case("endless loop", "while True: pass", "cpu"),
        Case("10 GB", "x = bytearray(10 << 30)", "memory"),
        Case("fork bomb", "import os\nwhile True: os.fork()", "processes"),
        Case("1 GB of output", OUTPUT, "output"),
        Case("file of 5 MB, 1 MB allowed", "open('f', 'wb').write(bytes(5 << 20))", "file"),
        Case("8 sleepers in sessions of their own", CHILDREN, ""),
        Case("a file of the host", READ.format(path=str(Path(__file__).resolve())), ""),
        Case("a server of the host", DIALS.format(host="127.0.0.1", port=port), ""),
    ]


def left() -> int:
    """Processes below this one, where all that lose their parent come to be."""
    return len(psutil.Process().children(recursive=True))


async def measure(sandbox: Choice) -> None:
    """Print a line for each case."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server, await open_box(sandbox) as box:
        await box.run(Job("run", {"source": "pass"}))
        load = os.getloadavg()[0]
        print(f"{platform.machine()}, user {os.geteuid()}, load {load:.1f}, sandbox {box.backend}; {LIMITS}")
        for case in cases(server.sockets[0].getsockname()[1]):
            before, began_s = left(), time.perf_counter()
            outcome = await box.run(Job("run", {"source": case.source}, b"", LIMITS))
            took_s = time.perf_counter() - began_s
            ended = f"ended by {outcome.limit}" if outcome.limit else f"ended with code {outcome.code}"
            is_held = outcome.limit == case.expected and b"come through" not in outcome.stdout
            held = "held" if is_held else "NOT HELD"
            print(f"{case.name}: {held}, {ended} after {took_s:.2f} s, {left() - before} processes left")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "limits"])
    asyncio.run(measure(parser.parse_args().sandbox))


if __name__ == "__main__":
    main()
