"""A train step on several ranks of this machine, with and without what FSDP2 does ahead.

On a CPU the trainer holds one layer's weights at a time (workers/trainer/sharding.py); beside it stands one
that gathers and sends ahead, as FSDP2 has it. Both take the same steps in turn, in the same processes, so
ratios are of one run: by the clock, and by the processor time of all ranks.
"""

import argparse
import os
import random
import socket
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from statistics import median
from typing import NamedTuple
from unittest.mock import patch


class Took(NamedTuple):
    """One step."""

    wall_s: float
    cpu_s: float  # of all ranks


def take_turns(directory: str, options: argparse.Namespace, rank: int) -> None:
    """Be a rank: both trainers, one step after the other; rank 0 prints."""
    import torch

    from benchmarks.tiny import PROMPT, make_message
    from benchmarks.train_speed import our_trainer
    from workers.trainer import sharding
    from workers.trainer.batch import read_batch

    torch.set_num_threads(1)
    draw = random.Random(0)
    lengths = [draw.randrange(60, options.longest) + PROMPT for _ in range(options.sequences)]
    message = make_message(lengths)
    how = {"device": "cpu", "reduce_gradients": options.reduce}
    trainer, ours = our_trainer(directory, options.budget, message, **how)
    with patch.object(sharding, "_hold_one_layer", lambda model: None):
        ahead = our_trainer(directory, options.budget, message, **how)[1]
    took: dict[str, list[Took]] = {"ours": [], "ahead": []}
    batch, losses = read_batch(*message), {"ours": [], "ahead": []}
    for number in range(options.rounds + 1):
        ways = [("ours", ours), ("ahead", ahead)]
        for name, step in ways if number % 2 else reversed(ways):
            wall, cpu = time.perf_counter(), time.process_time()
            losses[name].append(step(batch))
            spent = torch.tensor([time.process_time() - cpu], dtype=torch.float64)
            one = Took(time.perf_counter() - wall, trainer.ranks.sum(spent).item())
            if number:  # the first one warms up
                took[name].append(one)
    if rank == 0:
        print(
            "  all losses are the same" if losses["ours"] == losses["ahead"] else f"  LOSSES DIFFER: {losses}"
        )
        tell(took["ours"], took["ahead"], sum(lengths))


def tell(ours: Sequence[Took], ahead: Sequence[Took], tokens: int) -> None:
    """Print medians, and medians of the ratios of each round."""
    for name, each in (("one layer at a time", ours), ("as FSDP2 has it", ahead)):
        print(f"  {name:20} {tokens / median(one.wall_s for one in each):9.0f} tokens/s")
    wall = median(b.wall_s / a.wall_s for a, b in zip(ours, ahead, strict=True))
    cpu = median(b.cpu_s / a.cpu_s for a, b in zip(ours, ahead, strict=True))
    print(f"  one layer at a time is {wall:.3f}x as fast, {cpu:.3f}x by processor time")


def _be_a_rank(directory: str, options: argparse.Namespace, where: dict[str, str]) -> None:
    os.environ |= where
    take_turns(directory, options, int(where["RANK"]))
    os._exit(0)  # nobody says goodbye to ranks that were only measured


def main() -> None:
    """Print tokens/s and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--reduce", default="every_microbatch", help="trainer.reduce_gradients")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as probe:
        from benchmarks.tiny import make_qwen3

        make_qwen3(layers=options.layers, hidden=options.hidden).save_pretrained(directory)
        port = str(probe.getsockname()[1])
        probe.close()
        print(
            f"{options.ranks} ranks, load average {os.getloadavg()[0]:.1f}; {options.layers} layers of "
            f"{options.hidden}; {options.sequences} sequences, gradients cross {options.reduce}", flush=True
        )  # fmt: skip
        forks, children = get_context("fork"), []
        for rank in range(options.ranks):
            where = {"RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MASTER_PORT": port}
            where |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            children.append(forks.Process(target=_be_a_rank, args=(directory, options, where)))
            children[-1].start()
        for child in children:
            child.join()


if __name__ == "__main__":
    main()
