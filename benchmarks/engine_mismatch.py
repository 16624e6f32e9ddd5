"""What the trainer sees of an engine that means another distribution, and whether a warning is given.

An engine answers prompts of the quickstart's task in ways of its own, and a trainer with the very same
weights takes one train step on the answers, which it believes to be drawn from the whole distribution at
temperature 1 (or, where it is said, 0.6). So all that differs is precision, temperature, or what is cut off.
The quickstart's model is sure of most tokens; with --untrained its weights are random. Figures of one draw.
"""

import argparse
import platform
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from controller.core.decisions.training.logprob_drift import LogprobDrift
from examples.ledger_task import make_model, make_untrained_model, prompts
from tests.support.engine_answers import THRESHOLD, answers, as_batch, settings
from workers.engines.interface import Generation
from workers.trainer.trainer import Trainer

COLD = 0.6  # temperature of both sides in one case
TRAINED = "the kept set trained"  # as a run does it; without these words the trainer knows of no cut
CASES: dict[str, tuple[dict[str, Any], str, str]] = {  # sampling, dtype of the engine, of the trainer
    "as the trainer": ({}, "float32", "float32"),
    "engine in bfloat16": ({}, "bfloat16", "float32"),
    "both in bfloat16": ({}, "bfloat16", "bfloat16"),
    "temperature 0.95": ({"temperature": 0.95}, "float32", "float32"),
    "temperature 0.9": ({"temperature": 0.9}, "float32", "float32"),
    "temperature 0.9, both in bfloat16": ({"temperature": 0.9}, "bfloat16", "bfloat16"),
    "temperature 1.1": ({"temperature": 1.1}, "float32", "float32"),
    "temperature 0.7": ({"temperature": 0.7}, "float32", "float32"),
    "top_k 5": ({"top_k": 5}, "float32", "float32"),
    "top_p 0.9": ({"top_p": 0.9}, "float32", "float32"),
    "top_p 0.95": ({"top_p": 0.95}, "float32", "float32"),
    f"top_k 5, {TRAINED}": ({"top_k": 5}, "float32", "float32"),
    f"top_p 0.9, {TRAINED}": ({"top_p": 0.9}, "float32", "float32"),
    f"min_p 0.05, {TRAINED}": ({"min_p": 0.05}, "float32", "float32"),
    f"min_tokens 20, {TRAINED}": ({"min_tokens": 20}, "float32", "float32"),
    f"all four at 0.6, {TRAINED}": (
        {"top_k": 9, "top_p": 0.9, "min_p": 0.05, "min_tokens": 20, "temperature": COLD},
        "float32",
        "float32",
    ),
    "top_p 0.95, both at 0.6": ({"top_p": 0.95, "temperature": COLD}, "float32", "float32"),
}
COLUMNS = (
    "mismatch_kl", "logprob_gap_p99", "importance_weight/mean", "engine/temperature",
    "engine/temperature_error", "engine/cut", "engine/cut_error", "engine/fresh_tokens",
)  # fmt: skip


def main() -> None:
    """Print one line for each way of sampling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="directory of the quickstart's model; without it one is made")
    parser.add_argument("--untrained", action="store_true", help="make one of random weights")
    parser.add_argument("--groups", type=int, default=64, help="of 4 responses each")
    parser.add_argument("--only", default="", help="cases with these words in their name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory()
    directory = options.model or str(Path(folder.name) / "model")
    if not options.model:
        make = make_untrained_model if options.untrained else make_model
        make(directory, seed=0, progress=lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = [row["prompt"] for row in islice(prompts(seed=1), options.groups)]
    added = [
        Generation((group, member, 0), tokenizer(text)["input_ids"], [], 144, 10 * group + member)
        for group, text in enumerate(texts)
        for member in range(4)
    ]
    print(f"{platform.machine()}, torch {torch.__version__}; {', '.join(COLUMNS)}; warnings")
    for name, (sampling, dtype, forward) in CASES.items():
        if options.only not in name:
            continue
        engine = settings(folder.name, dtype=dtype, forward="float32", **sampling)
        believed = {"temperature": COLD} if sampling.get("temperature") == COLD else {}
        trainer = Trainer(settings(folder.name, dtype="float32", forward=forward, **believed), directory)
        found = answers(engine, directory, added)
        metrics = trainer.train_step(*as_batch(added, found, is_cut=TRAINED in name))
        figures = "  ".join(f"{metrics[column]:10.4g}" for column in COLUMNS)
        warned = LogprobDrift(THRESHOLD).observe(0, metrics)
        print(f"{name:42s}{figures}  {len(warned.splitlines()) if warned else 'none'}", flush=True)


if __name__ == "__main__":
    main()
