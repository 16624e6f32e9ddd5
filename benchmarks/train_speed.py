"""Tokens/s of one whole train step: ours, a plain transformers loop, and the loss of TRL's GRPOTrainer.

All three take the same sequences and advantages through the same model in float32, with the same token
budget, one optimizer step of fused AdamW and a clipped gradient; the token-mean clipped policy loss, on
policy, so nobody needs a second forward pass. The loops pad: in the order of the batch, as many sequences
in a micro-batch as the longest of all allows, which is what a fixed batch size does; or `sorted` by length,
which plain loops rarely do. Ways alternate within one process; the figures are medians.
"""

import argparse
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.packing import in_order_batches, padded_batches
from benchmarks.tiny import PROMPT, VOCABULARY, make_message, make_qwen3, padded_tensors
from protocol.messages import Train
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.models.model import pick_device
from workers.trainer.batch import TrainBatch, read_batch
from workers.trainer.trainer import Trainer

LR, CLIP = 1e-5, 0.2
Split = Callable[[Sequence[int], int], list[list[int]]]


def our_trainer(
    directory: str, budget: int, message: tuple[Train, Any], **options: Any
) -> tuple[Trainer, Callable[[TrainBatch], float]]:
    """A trainer and its train step, reading its message included; each way returns the loss."""
    settings = WorkerSettings(
        run_dir=directory, seed=0, steps=10**6, model=ModelSettings(), reward=RewardSettings(),
        rollout=RolloutSettings(max_response_tokens=4096),
        trainer=TrainerSettings(lr=LR, importance="none", max_tokens_per_microbatch=budget, **options),
    )  # fmt: skip
    trainer = Trainer(settings, directory)

    def step(_: TrainBatch) -> float:
        train = replace(message[0], train_version=trainer.policy_version)
        return trainer.train_step(train, message[1])["loss"]

    return trainer, step


def plain_step(
    directory: str, budget: int, device: torch.device, split: Split
) -> Callable[[TrainBatch], float]:
    """The loop that a person would write around a transformers model."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(batch: TrainBatch) -> float:
        total, count = 0.0, len(batch.advantages)
        for indices in split(batch.lengths, budget):
            tokens_BT, mask_BT = padded_tensors(batch, indices, device)
            logits = model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits[
                :, PROMPT - 1 : -1
            ]
            targets = tokens_BT[:, PROMPT:, None]
            logprobs = logits.float().log_softmax(-1).gather(-1, targets).squeeze(-1)
            ratio = (logprobs - logprobs.detach()).exp()
            advantages = _advantages(batch, indices, device)[:, None]
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP) * advantages
            loss = -(torch.minimum(ratio * advantages, clipped) * mask_BT[:, PROMPT:]).sum() / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def trl_step(
    directory: str, budget: int, device: torch.device, split: Split
) -> Callable[[TrainBatch], float]:
    """Micro-batches through `GRPOTrainer.compute_loss`. Raises: ImportError if TRL is not installed."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    from examples.ledger_task import make_tokenizer

    tokenizer: PreTrainedTokenizerFast = make_tokenizer()  # GRPOTrainer wants one; nothing is tokenized here
    arguments = GRPOConfig(
        output_dir=directory, report_to="none", use_cpu=device.type == "cpu", bf16=False, num_generations=4,
        per_device_train_batch_size=4, gradient_accumulation_steps=1, beta=0.0, epsilon=CLIP,
        loss_type="dapo", gradient_checkpointing=False, max_completion_length=4096,
    )  # fmt: skip
    trainer: Any = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "1:"}] * 4),
        processing_class=tokenizer,
    )
    model = trainer.model.to(device).train()
    trainer.current_gradient_accumulation_steps = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(batch: TrainBatch) -> float:
        total = 0.0
        for indices in split(batch.lengths, budget):
            tokens_BT, mask_BT = padded_tensors(batch, indices, device)
            loss = trainer.compute_loss(
                model,
                {
                    "prompt_ids": tokens_BT[:, :PROMPT],
                    "prompt_mask": mask_BT[:, :PROMPT],
                    "completion_ids": tokens_BT[:, PROMPT:],
                    "completion_mask": mask_BT[:, PROMPT:],
                    "advantages": _advantages(batch, indices, device),
                    "num_items_in_batch": torch.tensor(float(len(batch.advantages)), device=device),
                },
            )
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def _advantages(batch: TrainBatch, indices: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(
        [float(batch.advantages[batch.response_starts[index]]) for index in indices], device=device
    )


def main() -> None:
    """Print tokens/s and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    arguments = parser.parse_args()
    device = pick_device("auto")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = random.Random(0)
    lengths = [
        min(arguments.longest, int(60 * source.paretovariate(1.2))) + PROMPT
        for _ in range(arguments.sequences)
    ]
    message = make_message(lengths)
    batch = read_batch(*message)
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    )
    print(
        f"{name}, load average {os.getloadavg()[0]:.1f}; {arguments.layers} layers of {arguments.hidden}, "
        f"{arguments.vocabulary} words; "
        f"{arguments.sequences} sequences of {min(batch.lengths)} to {max(batch.lengths)} tokens, "
        f"{sum(batch.lengths)} in all, budget {arguments.budget}"
    )
    with tempfile.TemporaryDirectory() as directory:
        model = make_qwen3(layers=arguments.layers, hidden=arguments.hidden, vocabulary=arguments.vocabulary)
        model.save_pretrained(directory)
        budget = arguments.budget
        ways = {
            "ours, packed": our_trainer(directory, budget, message)[1],
            "plain loop": plain_step(directory, budget, device, in_order_batches),
            "plain loop, sorted": plain_step(directory, budget, device, padded_batches),
        }
        try:
            ways["TRL's loss"] = trl_step(directory, budget, device, in_order_batches)
            ways["TRL's loss, sorted"] = trl_step(directory, budget, device, padded_batches)
        except ImportError as error:
            print(f"TRL is left out ({error}): pip install -e '.[workers,bench]'")
        seconds = _time(ways, batch, arguments.rounds, is_cuda=device.type == "cuda")
    first = median(seconds["ours, packed"])
    for name, times in seconds.items():
        took = median(times)
        print(f"  {name:20} {sum(batch.lengths) / took:9.0f} tokens/s   ours is {took / first:.2f}x as fast")


def _time(
    ways: Mapping[str, Callable[[TrainBatch], float]], batch: TrainBatch, rounds: int, *, is_cuda: bool
) -> dict[str, list[float]]:
    """Seconds of each round of each way, in turns; a first round warms up, and its loss is printed."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, step in ways.items():
            began = time.perf_counter()
            loss = step(batch)
            if is_cuda:
                torch.cuda.synchronize()
            if number:
                seconds[name].append(time.perf_counter() - began)
            else:
                print(f"  loss of the first step, {name}: {loss:.6f}")
    return seconds


if __name__ == "__main__":
    main()
