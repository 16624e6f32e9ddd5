"""Makes a reward model with random weights: `.venv/bin/python examples/rewards/make_reward_model.py DIR`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.ledger_task import make_untrained_model


def main(folder: str) -> None:
    """A classifier with one output, of the size of the ledger's model, beside the ledger's tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    make_untrained_model(folder, seed=0, progress=lambda share, what: print(f"{share:.0%} {what}"))
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
