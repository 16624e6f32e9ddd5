"""How much of a run's time waits for rewards: `python -m benchmarks.reward_share [CONFIG ...] [--steps N]`.

Runs each configuration (examples/code.yaml, where every response is a program that is tested in a sandbox, if
none is named) and prints what its time went to after the workers had started, as `summary.json` has it.
"""

import argparse
import asyncio
import json
import os
import tempfile

from controller import Controller, load_config

DEFAULT = "examples/code.yaml"
START = "start-up"


async def shares(path: str, steps: int, folder: str) -> dict[str, float]:
    """Share of the time after the start, by what the run waited for."""
    overrides = [f"run.steps={steps}", f"run.dir={folder}", "run.resume=never", "logging.console=quiet"]
    async with Controller(load_config(path, overrides)) as controller:
        async for _ in controller.train():
            pass
    spent_s = {what: seconds for what, seconds in controller.summary["spent_s"].items() if what != START}
    whole_s = sum(spent_s.values())
    return {what: round(seconds / whole_s, 3) for what, seconds in sorted(spent_s.items())}


async def main() -> None:
    """Print one line of JSON per configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="*", default=[DEFAULT])
    parser.add_argument("--steps", type=int, default=20)
    words = parser.parse_args()
    for path in words.configs:
        with tempfile.TemporaryDirectory() as folder:
            found = await shares(path, words.steps, folder)
        print(json.dumps({"config": path, "steps": words.steps, "cores": os.cpu_count(), "share": found}))


if __name__ == "__main__":
    asyncio.run(main())
