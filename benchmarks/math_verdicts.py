"""Verdicts per second of the reward `math`: `python -m benchmarks.math_verdicts [--responses N]`.

The processes of one reward worker, groups of 8 responses, answers as chat models write them. The first groups
warm the processes up and do not count.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import time

from protocol.rewards.kinds import MathReward
from protocol.settings import RewardSettings
from workers.reward.kinds.interface import Place
from workers.reward.mixture import RewardMixture

SIZE = 8
WARM_UP = 4  # groups


def groups(count: int) -> list[tuple[str, list[str]]]:
    """Gold answers and responses: numbers, fractions and roots, half of them right."""
    rng, made = random.Random(0), []
    for _ in range(count):
        a, b = rng.randint(2, 999), rng.randint(2, 99)
        gold, right = rng.choice(
            [(str(a), f"{a}.0"), (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{2 * a}}}{{{2 * b}}}"),
             (f"\\sqrt{{{a}}}", f"\\sqrt{{{a}}}")]
        )  # fmt: skip
        frames = ["So we get \\boxed{{{}}}.", "The answer is ${}$.", "Hence\n$x = {}$"]
        made.append((gold, [rng.choice(frames).format(rng.choice([right, a + b])) for _ in range(SIZE)]))
    return made


async def measure(responses: int, processes: int) -> float:
    """Seconds for so many responses."""
    settings = RewardSettings(processes=processes, timeout_s=300.0)
    mixture = RewardMixture([MathReward()], settings, place=Place(""))

    async def score(gold: str, completions: list[str]) -> None:
        row = json.dumps({"answer": gold}).encode()
        request = (0, row, "?", [0], completions, [[0]] * SIZE, ["stop"] * SIZE)
        await mixture.score(request, members=SIZE)

    async with mixture:
        await mixture.start()
        asked = groups(WARM_UP * processes + responses // SIZE)
        await asyncio.gather(*(score(*one) for one in asked[: WARM_UP * processes]))
        began = time.perf_counter()
        await asyncio.gather(*(score(*one) for one in asked[WARM_UP * processes :]))
        return time.perf_counter() - began


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--responses", type=int, default=800)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    took_s = asyncio.run(measure(asked.responses, asked.processes))
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    count = asked.responses // SIZE * SIZE
    print(f"{count / took_s:.0f} verdicts/s: {count} in {took_s:.1f} s, {asked.processes} processes; {where}")


if __name__ == "__main__":
    main()
