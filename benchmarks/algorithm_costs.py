"""What each correction adds to a train step: seconds against the default's, same batches, interleaved.

A small model on this machine's CPU, one thread; batches of the lengths that the ledger task has (many short
responses, a few long ones). Ratios depend on the model's size less than on what each choice adds: a pass
without gradient is about a third of a step, a critic is a second step.
"""

import argparse
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.messages import Segment, Train, TrainItem
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.trainer.worker import Trainer

VOCABULARY, GROUPS, GROUP_SIZE, PROMPT = 512, 8, 8, 16
CASES: dict[str, dict[str, object]] = {
    "default (grpo, 1 minibatch)": {},
    "proximal: rollout": {"proximal": "rollout"},
    "rejection: sequence": {"rejection": "sequence", "rejection_metric": "k3", "rejection_bounds": (0, 0.1)},
    "minibatches: 4": {"minibatches": 4},
    "minibatches: 4, proximal: rollout": {"minibatches": 4, "proximal": "rollout"},
    "minibatches: 4, proximal: loglinear": {"minibatches": 4, "proximal": "loglinear"},
    "kl_coefficient: 0.01": {"kl_coefficient": 0.01},
    "entropy_coefficient: 0.001": {"entropy_coefficient": 0.001},
    "algorithm: ppo (critic)": {"algorithm": "ppo"},
}


def make_batch(train_version: int) -> tuple[Train, tuple[bytes, ...]]:
    """64 responses with a heavy tail of lengths."""
    rng = np.random.default_rng(train_version)
    lengths = np.minimum(15 * (1 + rng.pareto(1.2, GROUPS * GROUP_SIZE)), 400).astype(int)
    items = tuple(
        TrainItem(
            place // GROUP_SIZE, place % GROUP_SIZE, PROMPT, 0.0, float(rng.normal()), "stop",
            (Segment(1, max(0, train_version - 1), int(length)),),
        )
        for place, length in enumerate(lengths)
    )  # fmt: skip
    prompts = rng.integers(0, VOCABULARY, PROMPT * len(items)).astype("<i4")
    responses = rng.integers(0, VOCABULARY, lengths.sum()).astype("<i4")
    logprobs = np.full(lengths.sum(), -np.log(VOCABULARY), dtype="<f4")
    return Train(train_version, items), tuple(part.tobytes() for part in (prompts, responses, logprobs))


def make_trainer(folder: Path, options: dict[str, object]) -> Trainer:
    """A trainer of the model in the folder."""
    settings = WorkerSettings(
        run_dir=str(folder),
        seed=0,
        steps=1000,
        model=ModelSettings(),
        rollout=RolloutSettings(),
        reward=RewardSettings(),
        trainer=TrainerSettings.model_validate({"device": "cpu", "lr": 1e-4, **options}),
    )
    return Trainer(settings, str(folder / "model"))


def main() -> None:
    """Print a table of medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=32,
            num_key_value_heads=2, intermediate_size=384, tie_word_embeddings=True,
        )  # fmt: skip
        torch.manual_seed(0)
        Qwen3ForCausalLM(shape).save_pretrained(folder / "model")
        trainers = {case: make_trainer(folder, options) for case, options in CASES.items()}
        seconds: dict[str, list[float]] = {case: [] for case in CASES}
        before: dict[str, list[float]] = {case: [] for case in CASES}
        for version in range(rounds + 1):  # the first is not counted
            batch = make_batch(version)
            for case, trainer in trainers.items():
                began = time.perf_counter()
                trainer.train_step(*batch)
                seconds[case].append(time.perf_counter() - began)
                before[case].append(trainer.seconds["proximal"])
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, 1 thread, {rounds} rounds"
    )
    print(
        "| choice | seconds per step | against the default | of it without gradient, s |\n|---|---|---|---|"
    )
    default = next(iter(CASES))
    for case in CASES:
        ratios = [a / b for a, b in zip(seconds[case][1:], seconds[default][1:], strict=True)]
        median, first = statistics.median(seconds[case][1:]), statistics.median(before[case][1:])
        print(f"| `{case}` | {median:.2f} | {statistics.median(ratios):.2f} | {first:.2f} |")


if __name__ == "__main__":
    main()
