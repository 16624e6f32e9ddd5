"""What a policy version costs another host: `python -m benchmarks.weight_deltas`.

Trains a small transformer in float32 with AdamW on a policy-gradient loss, publishes it in bfloat16 after
each step, and tells each version by the one before it, chunk by chunk, as weights exchanges do. Prints, for
several learning rates, the share of weights that changed, the bytes against those of the whole version, and
what telling and applying took; every version is compared bit for bit.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import count, islice

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from workers.weights.deltas import decode, encode
from workers.weights.manifest import CHUNK_BYTES

RATES = (1e-6, 3e-6, 1e-5)
SETTLING = (
    5  # steps before the ones that count: AdamW's moments begin at zero, so its first steps are its largest
)
SEQUENCES, LENGTH = 8, 64


def main() -> None:
    """Print one line per learning rate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    torch.manual_seed(0)
    print("    lr   weights changed   bytes of the whole   telling ms/MB   applying ms/MB   whole MB")
    for rate in RATES:
        rows = list(_versions(rate, options.steps, options.hidden))
        changed, share, told_s, applied_s, size = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        mb = size / 1e6
        print(
            f"{rate:6.0e}   {changed:15.2%}   {share:18.2%}   {told_s * 1e3 / mb:13.2f}   "
            f"{applied_s * 1e3 / mb:14.2f}   {mb:8.1f}"
        )


def _versions(rate: float, steps: int, hidden: int) -> Iterator[tuple[float, float, float, float, float]]:
    """Of each version: share of weights that changed, share of bytes, seconds to tell and to apply, bytes."""
    before = None
    for model in islice(trained(rate, hidden), steps + 1):
        after = _published(model)
        if before is not None:
            yield _tell(before, after)
        before = after


def trained(rate: float, hidden: int) -> Iterator[Qwen3ForCausalLM]:
    """A transformer after one more step each time, once the optimizer has settled."""
    config = Qwen3Config(
        vocab_size=8192, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=hidden // 4, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for step in count(1):
        tokens = torch.randint(0, config.vocab_size, (SEQUENCES, LENGTH))
        advantages = torch.randn(SEQUENCES, 1)
        logprobs = model(tokens).logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        optimizer.zero_grad()
        (-(advantages * logprobs).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= SETTLING:
            yield model


def _published(model: torch.nn.Module) -> torch.Tensor:
    """All weights in bfloat16, as one row of words."""
    return torch.cat([p.detach().bfloat16().reshape(-1).view(torch.int16) for p in model.parameters()])


def _tell(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float, float, float, float]:
    old, new = (memoryview(words.numpy()).cast("B") for words in (before, after))
    sent, told_s, applied_s = 0, 0.0, 0.0
    for start in range(0, len(new), CHUNK_BYTES):
        chunk, base = new[start : start + CHUNK_BYTES], old[start : start + CHUNK_BYTES]
        begin = time.perf_counter()
        delta = encode(chunk, base)
        told = time.perf_counter()
        made = chunk if delta is None else decode(delta, base)
        applied_s += time.perf_counter() - told
        told_s += told - begin
        sent += len(chunk) if delta is None else len(delta)
        assert made == chunk
    changed = (before != after).float().mean().item()
    return changed, sent / len(new), told_s, applied_s, float(len(new))


if __name__ == "__main__":
    main()
