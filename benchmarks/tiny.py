"""Random models and batches for benchmarks of the trainer."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from protocol.messages import Segment, Train, TrainItem
from workers.trainer.batch import TrainBatch

PROMPT = 8  # tokens of each prompt
VOCABULARY = 512


def make_qwen3(*, layers: int, hidden: int, vocabulary: int = VOCABULARY) -> Qwen3ForCausalLM:
    """A dense model with random weights, in evaluation mode."""
    heads = max(2, hidden // 64)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
        tie_word_embeddings=True, max_position_embeddings=8192, attention_dropout=0.0,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def make_message(lengths: Sequence[int]) -> tuple[Train, tuple[bytes, bytes, bytes]]:
    """Random sequences of these lengths (above PROMPT), four to a group, with made-up advantages, as a
    trainer gets them; `read_batch` makes a batch of it."""
    rng = np.random.default_rng(0)
    items = tuple(
        TrainItem(
            index // 4, index % 4, PROMPT, 0.0, float(rng.normal()), "stop", (Segment(0, 0, length - PROMPT),)
        )
        for index, length in enumerate(lengths)
    )
    count = sum(lengths) - PROMPT * len(lengths)
    frames = (
        rng.integers(0, VOCABULARY, PROMPT * len(lengths)).astype("<i4"),
        rng.integers(0, VOCABULARY, count).astype("<i4"),
        rng.normal(-6, 0.3, count).astype("<f4"),
    )
    return Train(0, items), (frames[0].tobytes(), frames[1].tobytes(), frames[2].tobytes())


def padded_tensors(
    batch: TrainBatch, indices: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask (1 where there is one) of some sequences, [B, T], padded on the right."""
    longest = max(len(batch.tokens[index]) for index in indices)
    tokens_BT = np.zeros((len(indices), longest), dtype=np.int64)
    mask_BT = np.zeros_like(tokens_BT)
    for row, index in enumerate(indices):
        tokens_BT[row, : len(batch.tokens[index])] = batch.tokens[index]
        mask_BT[row, : len(batch.tokens[index])] = 1
    return torch.from_numpy(tokens_BT).to(device), torch.from_numpy(mask_BT).to(device)
