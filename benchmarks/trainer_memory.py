"""What a trainer's ranks hold, counted where it is allocated, at 1, 2 and 4 ranks.

A tiny random model on the CPU, ranks that talk by gloo. Kept are weights, AdamW's moments, and gradients
between two micro-batches; transient is the most that a micro-batch takes beside them, in units of the largest
group of weights that FSDP gathers at once. One of those is weights of a layer, one its gradient, as nothing
is kept in flight on a CPU; the rest are activations, and weights and gradient of what is in no layer.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings

TOKENS = 16  # of a sequence, and of a micro-batch
SEQUENCES = 8
LAYERS, HIDDEN = 6, 256
Counts = dict[str, float]


class Counted(NamedTuple):
    """Bytes of one rank."""

    kept: dict[str, int]
    transient: int
    unit: int  # bytes of the largest group of weights
    metrics: dict[str, float]


def count(settings: WorkerSettings, directory: str) -> Counted:
    """Of this rank, over the first optimizer step of a trainer that is made for it. Collective."""
    from benchmarks.tiny import make_message
    from tests.support.allocation import live_bytes
    from workers.trainer.batch import read_batch
    from workers.trainer.trainer import Trainer

    made: list[Trainer] = []
    weights = live_bytes(lambda: made.append(Trainer(settings, directory))).kept
    (trainer,) = made
    message, frames = make_message([TOKENS] * SEQUENCES)
    batch = read_batch(message, frames)
    rows = trainer._rows(batch, range(SEQUENCES))
    flat = trainer._evaluate(batch, [range(SEQUENCES)], rows)
    trainer._backward(rows, flat)  # what a first pass allocates for good
    trainer._optimizer.zero_grad()
    backward: Callable[[], object] = lambda: trainer._backward(rows[:-1], flat, is_end=False)  # noqa: E731
    gradients = live_bytes(backward)
    again = live_bytes(backward).peak - gradients.kept  # it adds to those, so they count as its own
    trainer._backward(rows[-1:], flat)
    trainer._optimizer.zero_grad()
    metrics: dict[str, float] = {}
    moments = live_bytes(lambda: metrics.update(trainer.train_step(message, frames))).kept
    kept = {"weights": weights, "gradient": gradients.kept, "moments": moments}
    units = [sum(p.numel() * 4 for p in layer.parameters()) for layer in trainer.model.model.layers]
    if trainer.ranks.rank:
        trainer.ranks.receive()
    trainer.ranks.stop()
    return Counted(kept, again, max(units), metrics)


def settings_of(folder: Path, ranks: int, options: Mapping[str, Any]) -> WorkerSettings:
    """Of a trainer of this benchmark."""
    return WorkerSettings(
        run_dir=str(folder),
        seed=0,
        steps=1,
        model=ModelSettings(),
        rollout=RolloutSettings(max_prompt_tokens=8, max_response_tokens=TOKENS),
        reward=RewardSettings(),
        trainer=TrainerSettings(device="cpu", ranks=ranks, max_tokens_per_microbatch=TOKENS, **options),
    )


def make_model(folder: Path) -> str:
    """A model's directory."""
    import torch

    from benchmarks.tiny import make_qwen3

    torch.manual_seed(0)
    make_qwen3(layers=LAYERS, hidden=HIDDEN).save_pretrained(folder / "model")
    return str(folder / "model")


def _be_a_rank(settings: WorkerSettings, model: str, where: dict[str, str]) -> None:
    os.environ |= where
    (Path(settings.run_dir) / f"rank_{where['RANK']}.json").write_text(json.dumps(count(settings, model)))


def count_ranks(folder: Path, model: str, ranks: int, **options: Any) -> list[Counted]:
    """Of each rank. They are forked from this process, which must not have used torch's threads."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    settings, forks, children = settings_of(folder, ranks, options), get_context("fork"), []
    for rank in range(ranks):
        where = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": port}
        where |= {"MASTER_ADDR": "127.0.0.1"}
        children.append(forks.Process(target=_be_a_rank, args=(settings, model, where)))
        children[-1].start()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        sys.exit("A rank failed; its error is above.")
    return [Counted(*json.loads((folder / f"rank_{rank}.json").read_text())) for rank in range(ranks)]


def main() -> None:
    """Print a table, or lines of JSON, one for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--reduce", default="every_microbatch", help="trainer.reduce_gradients")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder)
        for ranks in arguments.ranks:
            found = count_ranks(folder, model, ranks, reduce_gradients=arguments.reduce)
            if arguments.json:
                print(json.dumps([one._asdict() for one in found]), flush=True)
                continue
            for rank, one in enumerate(found):
                kept = ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in one.kept.items())
                transient = f"{one.transient / one.unit:.2f} units of {one.unit / 1e6:.2f} MB"
                print(f"rank {rank} of {ranks}: {kept}; transient {transient}")


if __name__ == "__main__":
    main()
