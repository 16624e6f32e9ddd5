"""A task that a random model of a few thousand weights learns in seconds: answer with even digits, then stop.

Given to workers by import path, as a user would.
"""

import json
import os
import time
from pathlib import Path

ALPHABET = "0123456789:."
MAX_DIGITS = 12


def prompts(*, seed):
    """Endless prompts like `37:`."""
    import random

    rng = random.Random(seed)
    while True:
        yield {"prompt": f"{rng.randrange(100):02d}:", "answer": "even"}


def reward(prompt, completion, answer):
    """Share of even digits; 0 for an empty answer."""
    assert prompt.endswith(":")
    assert answer == "even"
    digits = [c for c in completion if c.isdigit()]
    return sum(c in "02468" for c in digits) / len(digits) if digits else 0.0


async def slow_reward(completions, **columns):
    """The same for a whole group, TRL's shape."""
    return [reward(":", completion, "even") for completion in completions]


def raising_reward(completion):
    """Always fails."""
    raise ZeroDivisionError(f"cannot score {completion!r}")


def nan_reward(completion):
    """Not a finite number."""
    return float("nan")


def text_reward(completion):
    """Not a number at all."""
    return "good"


def hanging_reward(completion):
    """Never returns."""
    while True:
        time.sleep(3600)


def poisonable_reward(prompt, completion, answer):
    """`reward`, but for rows that kill the process it runs in, or never let it return."""
    if answer == "kills":
        os._exit(9)
    if answer == "hangs":
        hanging_reward(completion)
    return reward(prompt, completion, answer)


def make_model(directory, *, seed, progress):
    """A random Qwen3 of about 8,000 weights with a character tokenizer."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    vocabulary = {c: i for i, c in enumerate(ALPHABET)} | {"<eos>": 12, "<pad>": 13, "<unk>": 14}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.1,
        eos_token_id=12,
        pad_token_id=13,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    progress(0.5, "random weights")
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    (Path(directory) / "made.json").write_text(json.dumps({"seed": seed}))
