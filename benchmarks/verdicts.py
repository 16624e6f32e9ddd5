"""How many verdicts on programs a second: `python -m benchmarks.verdicts [--count N] [--sandbox limits]`.

Prints them for outputs (a process per input), asserts (two processes per program) and a bare start of a
sandbox, with as many at once as there are cores, and the CPU seconds of that start.
"""

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Awaitable, Callable

from protocol.rewards.kinds import CodeReward
from workers.reward.kinds.code import verdicts
from workers.reward.kinds.code_rows import Asserts, Pairs
from workers.sandbox.chosen_box import Choice, open_box
from workers.sandbox.job import Job

OPTIONS = CodeReward(cpu_s=30, wall_s=120, total_s=600)
PAIRS = Pairs(tuple(f"{n}\n" for n in range(4)), tuple(f"{n * n}\n" for n in range(4)))
ASSERTS = Asserts(tuple(f"assert f({n}) == {n * n}" for n in range(4)), "", "")


async def rate(count: int, verdict: Callable[[], Awaitable[object]]) -> float:
    """Calls per second, all of them in flight."""
    began_s = time.perf_counter()
    await asyncio.gather(*(verdict() for _ in range(count)))
    return count / (time.perf_counter() - began_s)


async def measure(count: int, sandbox: Choice) -> None:
    """Print a line for each kind."""
    kinds: dict[str, Callable[[], Awaitable[object]]] = {}
    async with await open_box(sandbox) as box:
        kinds["one bare program"] = lambda: box.run(Job("run", {"source": "pass"}))
        prints, defines = "print(int(input()) ** 2)", "def f(x): return x * x"
        kinds["4 inputs, one process each"] = lambda: verdicts(box, prints, PAIRS, OPTIONS)
        kinds["4 asserts, two processes"] = lambda: verdicts(box, defines, ASSERTS, OPTIONS)
        machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        bare = await box.run(Job("run", {"source": "pass"}))
        print(f"{machine}, sandbox {box.backend}; a bare program takes {bare.cpu_s:.3f} s of CPU")
        for name, verdict in kinds.items():
            print(f"{name}: {await rate(count, verdict):.1f} verdicts/s")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="verdicts of each kind")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "limits"])
    options = parser.parse_args()
    asyncio.run(measure(options.count, options.sandbox))


if __name__ == "__main__":
    main()
