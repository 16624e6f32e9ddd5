"""A run inside a program of one's own: `.venv/bin/python examples/embedded.py [steps]`, from the folder that
holds `controller`. docs/embedding.md says what can be given and asked.
"""

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from ledger_task import prompts, reward  # noqa: E402

from controller import Controller, load_config  # noqa: E402


class Judge:
    """The reward of the task, less a price for each character."""

    def __init__(self, *, price: float) -> None:
        self.price = price

    def __call__(self, prompt: str, completion: str, ending: str) -> float:
        return reward(prompt, completion, ending) - self.price * len(completion)


judge = Judge(price=1e-4)  # at the top level: workers import this file, and each makes its own


async def main(steps: int) -> None:
    """Train until the mean reward is high, and print it after every step."""
    config = load_config(str(HERE / "quickstart.yaml"), (f"run.steps={steps}", "run.name=embedded"))

    def warn(text: str) -> None:
        print(f"warning: {text}", file=sys.stderr)

    async with Controller(config, prompts=prompts(seed=7), reward=judge, on_warning=warn) as controller:
        async for step in controller.train():
            running = sum(worker.running for worker in controller.snapshot().workers)
            print(step.policy_version, step.metrics["reward/mean"], f"{running} at work", flush=True)
            if step.metrics["reward/mean"] > 0.9:
                controller.stop("It is good enough.")
    print(controller.summary["ending"], controller.summary["verdict"], sep=": ")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
