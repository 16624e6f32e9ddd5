"""Time to a mean reward on the quickstart: ours at bound 2, and TRL's GRPOTrainer, one after the other.

The same initial model, prompts in the same order, reward function, batch (32 prompts by 16 responses, two
optimizer steps), sampling, learning rate and clip, each in a process of its own with all cores. TRL samples
with transformers' `generate`, which is what it has without a GPU; it is synchronous, and pads. The clock of
both runs from the moment that the model is there, with everything that has to be started.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
WINDOW = 5  # batches that the mean reward is taken over


class Progress:
    """Rewards of one way, up to its target or the end of its time."""

    def __init__(self, target: float, limit_s: float) -> None:
        self._began, self._target, self._limit_s = time.monotonic(), target, limit_s
        self._last: deque[float] = deque(maxlen=WINDOW)
        self.result: dict[str, Any] = {"batches": 0}

    def add(self, reward: float) -> bool:
        """Note the mean reward of a batch; whether to stop."""
        self._last.append(reward)
        took, mean = time.monotonic() - self._began, fmean(self._last)
        is_reached = len(self._last) == WINDOW and mean >= self._target
        batches = self.result["batches"] + 1
        self.result = {
            "is_reached": is_reached, "seconds": round(took, 1), "batches": batches, "reward": round(mean, 3)
        }  # fmt: skip
        return is_reached or took > self._limit_s


def ours(model: Path, progress: Progress, seed: int) -> None:
    """The quickstart as it is, from this model."""
    from controller import Controller, load_config

    async def train(directory: str) -> None:
        overrides = [
            "model.factory=null", f"model.path={model}", f"run.dir={directory}", f"run.seed={seed}",
            "run.steps=100000", "staleness.max_staleness=2", "logging.console=quiet",
        ]  # fmt: skip
        async with Controller(load_config(str(QUICKSTART), overrides)) as controller:
            async for step in controller.train():
                if progress.add(step.metrics["reward/mean"]):
                    controller.stop("The benchmark has seen enough.")
                    return

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(train(directory))


def trl(model: Path, progress: Progress, seed: int) -> None:
    """GRPOTrainer, set up alike."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from controller import load_config
    from examples.ledger_task import prompts, reward

    config = load_config(str(QUICKSTART))
    trainer, rollout = config.trainer, config.rollout
    batch = trainer.batch_groups * rollout.group_size
    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    is_over = False

    def score(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        nonlocal is_over
        endings = ["stop" if ids[-1] == tokenizer.eos_token_id else "length" for ids in completion_ids]
        scores = [reward(*row) for row in zip(prompts, completions, endings, strict=True)]
        is_over = progress.add(fmean(scores))
        return scores

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = is_over

    with tempfile.TemporaryDirectory() as directory:
        arguments = GRPOConfig(
            output_dir=directory, seed=seed, use_cpu=not torch.cuda.is_available(), bf16=False,
            num_generations=rollout.group_size, per_device_train_batch_size=batch // trainer.minibatches,
            gradient_accumulation_steps=1, steps_per_generation=trainer.minibatches, max_steps=100_000,
            max_completion_length=rollout.max_response_tokens, temperature=1.0, learning_rate=trainer.lr,
            adam_beta1=trainer.betas[0], adam_beta2=trainer.betas[1], weight_decay=trainer.weight_decay,
            max_grad_norm=trainer.grad_clip, lr_scheduler_type="constant", beta=0.0, epsilon=trainer.clip_low,
            loss_type="dapo", scale_rewards="group", gradient_checkpointing=False, shuffle_dataset=False,
            report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        GRPOTrainer(
            model=str(model),
            reward_funcs=score,
            args=arguments,
            train_dataset=Dataset.from_list(list(islice(prompts(seed=seed), 50_000))),
            processing_class=tokenizer,
            callbacks=[Stop()],
        ).train()


WAYS = {"ours, max_staleness 2": ours, "TRL": trl}


def main() -> None:
    """Print what each way took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=float, default=0.6, help="mean reward of 5 batches")
    parser.add_argument("--minutes", type=float, default=10.0, help="at most, for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help="an initial model; made if left out")
    arguments = parser.parse_args()
    if arguments.only:
        progress = Progress(arguments.target, 60 * arguments.minutes)
        WAYS[arguments.only](arguments.model, progress, arguments.seed)
        print(json.dumps(progress.result))
        return
    with tempfile.TemporaryDirectory() as directory:
        model = arguments.model or Path(directory) / "model"
        if not model.exists():
            from workers.models.prepare import prepare

            prepare(f"{ROOT / 'examples' / 'ledger_task.py'}:make_model", model, seed=arguments.seed)
        print(
            f"target {arguments.target}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before"
        )
        for name in WAYS:
            words = ["--target", arguments.target, "--minutes", arguments.minutes, "--seed", arguments.seed]
            command = [sys.executable, "-m", "benchmarks.peer_trl", "--only", name, "--model", model, *words]
            ended = subprocess.run(
                list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False
            )
            if ended.returncode:
                last = (ended.stderr.strip().splitlines() or ["no output"])[-1]
                hint = " Install TRL: pip install -e '.[workers,bench]'." if "trl" in last else ""
                print(f"{name}: exit code {ended.returncode}: {last}{hint}")
            else:
                print(f"{name}: {ended.stdout.strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
