"""How long a batch waits for a judge: `python -m benchmarks.judges [--groups N] [--judge_s S]`.

The processes of a reward worker, around an async function that sleeps for as long as a judge thinks, once per
group and once per response; by the calls that may be in flight. With 1, a process has one group at a time.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from pathlib import Path

from protocol.settings import RewardSettings
from workers.reward.pool import RewardPool

FUNCTIONS = """
import asyncio

async def per_group(completions):
    await asyncio.sleep(JUDGE_S)
    return [0.0] * len(completions)

async def per_response(completion):
    await asyncio.sleep(JUDGE_S)
    return 0.0
"""


async def seconds(function: str, *, groups: int, size: int, concurrency: int) -> float:
    """From the first question to the last answer."""
    settings = RewardSettings(concurrency=concurrency)
    pool = RewardPool(
        function, processes=settings.processes, concurrency=concurrency, timeout_s=settings.timeout_s
    )
    request = (0, b"{}", "", [0], ["."] * size, [[0]] * size, ["stop"] * size)
    async with pool:
        await pool.start()
        began = time.perf_counter()
        await asyncio.gather(*(pool.score(request, members=size) for _ in range(groups)))
        return time.perf_counter() - began


async def table(*, groups: int, size: int, judge_s: float) -> None:
    """Print one line per kind of function and limit."""
    default = RewardSettings().concurrency
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "judges.py").write_text(FUNCTIONS.replace("JUDGE_S", str(judge_s)))
        for kind in ("per_group", "per_response"):
            for concurrency in (1, default, groups * size):
                function = f"{folder}/judges.py:{kind}"
                took = await seconds(function, groups=groups, size=size, concurrency=concurrency)
                note = " (the default)" if concurrency == default else ""
                print(f"{kind}, reward.concurrency {concurrency}{note}: {took:.1f} s", flush=True)


def main() -> None:
    """Print the machine, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--size", type=int, default=8, help="responses in a group")
    parser.add_argument("--judge_s", type=float, default=2.0, help="what the judge takes for one call")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}; {options.groups} groups of {options.size}, {options.judge_s:g} s a call")
    asyncio.run(table(groups=options.groups, size=options.size, judge_s=options.judge_s))


if __name__ == "__main__":
    main()
