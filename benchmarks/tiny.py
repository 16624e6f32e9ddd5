"""Random models and batches for benchmarks of the trainer."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from workers.batch import Batch

PROMPT = 8  # tokens of each prompt
VOCABULARY = 512


def make_qwen3(*, layers: int, hidden: int) -> Qwen3ForCausalLM:
    """A dense model with random weights and VOCABULARY tokens, in evaluation mode."""
    heads = max(2, hidden // 64)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
        tie_word_embeddings=True, max_position_embeddings=8192, attention_dropout=0.0,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def make_batch(lengths: Sequence[int]) -> Batch:
    """Random sequences of these lengths (above PROMPT), four to a group, with made-up advantages."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, VOCABULARY, length) for length in lengths]
    responses = np.array(lengths) - PROMPT
    return Batch(
        tokens=tokens,
        prompt_lengths=[PROMPT] * len(lengths),
        response_starts=[0, *np.cumsum(responses)[:-1].tolist()],
        groups=[index // 4 for index in range(len(lengths))],
        rollout_logprobs=rng.normal(-6, 0.3, responses.sum()).astype(np.float32),
        advantages=np.repeat(rng.normal(size=len(lengths)).astype(np.float32), responses),
    )


def padded_tensors(
    batch: Batch, indices: Sequence[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask (1 where there is one) of some sequences, [B, T], padded on the right."""
    longest = max(len(batch.tokens[index]) for index in indices)
    tokens_BT = np.zeros((len(indices), longest), dtype=np.int64)
    mask_BT = np.zeros_like(tokens_BT)
    for row, index in enumerate(indices):
        tokens_BT[row, : len(batch.tokens[index])] = batch.tokens[index]
        mask_BT[row, : len(batch.tokens[index])] = 1
    return torch.from_numpy(tokens_BT).to(device), torch.from_numpy(mask_BT).to(device)
