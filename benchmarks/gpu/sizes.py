"""The model and the work that a device is given, and the rows that come of it."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


class Finding(NamedTuple):
    """A row of the table."""

    what: str
    figure: str
    beside: str = ""
    """What it is to be compared with."""


class Size(NamedTuple):
    """Enough work for a device to show what it can, and little enough for minutes."""

    hidden: int
    layers: int
    vocabulary: int
    trajectories: tuple[int, ...]  # side by side, in decoding
    response: int  # tokens
    sequences: int  # of a train step
    longest: int  # tokens of one
    budget: int  # tokens of a micro-batch
    quickstart_steps: int


CARD = Size(1024, 16, 32_000, (1, 32, 256), 256, 256, 2048, 32_768, 40)
"""About 300 million parameters."""
REHEARSAL = Size(64, 2, 512, (1, 8), 24, 16, 96, 512, 2)


def size_of(device: torch.device) -> Size:
    """For a card, or for a rehearsal without one."""
    return CARD if device.type == "cuda" else REHEARSAL


def write_model(folder: Path, size: Size, *, dtype: torch.dtype = torch.float32) -> int:
    """Write a model of random weights; its parameters."""
    torch.manual_seed(0)
    heads = max(2, size.hidden // 64)
    config = Qwen3Config(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
        head_dim=64, tie_word_embeddings=True, max_position_embeddings=8192, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(dtype)
    model.save_pretrained(folder)
    return model.num_parameters()


def wait(device: torch.device) -> None:
    """Return when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
