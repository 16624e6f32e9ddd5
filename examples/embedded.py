"""A run inside a program of one's own: `python examples/embedded.py [steps]`, from the folder that holds
`controller`.
"""

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from controller import Controller, load_config  # noqa: E402


async def main(steps: int) -> None:
    """Train, and print the mean reward of every step."""
    overrides = (f"run.steps={steps}", "run.name=embedded")
    async with Controller(load_config(str(HERE / "quickstart.yaml"), overrides)) as controller:
        async for step in controller.train():
            print(step.policy_version, step.metrics["reward/mean"], flush=True)
    print(controller.summary["verdict"])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
