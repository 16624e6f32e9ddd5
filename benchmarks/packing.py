"""Is packing tight, and does it pay? Micro-batches against a lower bound, tokens/s against padded batches.

The lower bound is of bin packing and not always reachable. Padded batches are what a plain loop makes of the
same sequences: sorted by length, as many in a batch as the budget allows with padding, the same model and
attention of transformers' choice. Both are measured in turn, forward and backward.
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from tests.support.packing_bound import DISTRIBUTIONS, fewest_sequences_first, lower_bound


def count_micro_batches(rounds: int, count: int, budget: int) -> None:
    """Print worst and mean ratios to the lower bound by distribution."""
    from workers.trainer.packing import pack

    print(f"micro-batches / lower bound, {count} sequences, budget {budget}, {rounds} draws: mean (worst)")
    for name, draw in DISTRIBUTIONS.items():
        ours, theirs = [], []
        for seed in range(rounds):
            source = random.Random(seed)
            lengths = [draw(source, budget) for _ in range(count)]
            bound = lower_bound(lengths, budget)
            ours.append(len(pack(lengths, max_tokens=budget)) / bound)
            theirs.append(fewest_sequences_first(lengths, budget) / bound)
        print(
            f"  {name:15} ours {np.mean(ours):.3f} ({max(ours):.3f})   "
            f"AReaL's rule {np.mean(theirs):.3f} ({max(theirs):.3f})"
        )


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Sequences sorted by length, cut where one more would pad past the budget."""
    batches: list[list[int]] = [[]]
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and lengths[index] * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


def in_order_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """As many neighbours in a batch as the longest of all would allow: what a fixed batch size does."""
    size = max(1, budget // max(lengths))
    return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]


def measure_speed(rounds: int, budget: int, *, sequences: int, layers: int, hidden: int) -> None:
    """Print tokens/s of forward and backward, packed and padded, and their ratios."""
    import torch

    from benchmarks.tiny import make_message, make_qwen3, padded_tensors
    from workers.models.model import pick_device
    from workers.trainer.batch import read_batch
    from workers.trainer.losses import chosen_logprobs
    from workers.trainer.packed_forward import choose_attention, forward_row, pack_row
    from workers.trainer.packing import pack

    device = pick_device("auto")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    source = random.Random(0)
    lengths = [DISTRIBUTIONS["pareto"](source, min(budget, 1024)) + 8 for _ in range(sequences)]
    batch = read_batch(*make_message(lengths))
    model = make_qwen3(layers=layers, hidden=hidden).to(device)

    def packed() -> None:
        model.config._attn_implementation = choose_attention(device, torch.float32)
        for indices in pack(batch.lengths, max_tokens=budget):
            row = pack_row(batch, indices, device)
            chosen_logprobs(forward_row(model, row), row.targets_N, temperature=1.0)[0].sum().backward()

    def padded(split: Callable[[Sequence[int], int], list[list[int]]]) -> None:
        model.config._attn_implementation = "sdpa"
        for indices in split(batch.lengths, budget):
            tokens_BT, mask_BT = padded_tensors(batch, indices, device)
            logits = model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits
            chosen = chosen_logprobs(
                logits[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten(), temperature=1.0
            )
            (chosen[0] * mask_BT[:, 1:].flatten()).sum().backward()

    ways: dict[str, Callable[[], None]] = {
        "packed": packed,
        "padded, sorted by length": lambda: padded(padded_batches),
        "padded, in order": lambda: padded(in_order_batches),
    }
    seconds = _time(ways, rounds, is_cuda=device.type == "cuda")
    tokens, first = sum(batch.lengths), median(seconds["packed"])
    for name, times in seconds.items():
        took = median(times)
        print(f"  {name:26} {tokens / took:9.0f} tokens/s   packed is {took / first:.2f}x as fast")


def _time(ways: Mapping[str, Callable[[], None]], rounds: int, *, is_cuda: bool) -> dict[str, list[float]]:
    """Seconds of each round of each way, in turns; a first round warms up and does not count."""
    import torch

    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if is_cuda:
                torch.cuda.synchronize()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--budget", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timed", type=int, default=96, help="sequences of the second table")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    arguments = parser.parse_args()
    count_micro_batches(arguments.draws, arguments.sequences, arguments.budget)
    shape = f"{arguments.timed} sequences, {arguments.layers} layers of {arguments.hidden}, one thread"
    print(f"forward and backward, {shape}, load average {os.getloadavg()[0]:.1f}, median:")
    measure_speed(
        arguments.rounds,
        arguments.budget,
        sequences=arguments.timed,
        layers=arguments.layers,
        hidden=arguments.hidden,
    )


if __name__ == "__main__":
    main()
