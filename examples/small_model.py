"""A model of 124 thousand parameters, for a task that a few demonstrations have to begin.

`guess_task.py` and `calculator_task.py` write theirs with it. Equal seeds give an equal model on one machine.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PEAK_LR = 5e-3
RISE_STEPS = 20
Demonstration = tuple[Sequence[int], Sequence[bool]]
"""Tokens, and which of them the policy is to sample."""


def write_model(
    directory: str,
    tokenizer: "PreTrainedTokenizerFast",
    demonstrate: Callable[[], Sequence[Demonstration]],
    *,
    seed: int,
    steps: int,
    initializer_range: float,
    progress: Callable[[float, str], None],
) -> None:
    """Write a model that has seen `demonstrate()` at each of `steps` steps, and its tokenizer, there."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True, initializer_range=initializer_range,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    _warm_start(model, demonstrate, steps, progress)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _warm_start(
    model: Any,
    demonstrate: Callable[[], Sequence[Demonstration]],
    steps: int,
    progress: Callable[[float, str], None],
) -> None:
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / RISE_STEPS) * (1 - step / steps)
    )
    for step in range(steps):
        shown = demonstrate()
        width = max(len(tokens) for tokens, _ in shown)
        tokens_BT = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens, _ in shown])
        is_sampled_BT = torch.tensor([[*marks, *[False] * (width - len(marks))] for _, marks in shown])
        # padding is on the right and has no loss, so the causal mask alone is right
        logits_BTV = model(tokens_BT[:, :-1], use_cache=False).logits
        chosen_BT = is_sampled_BT[:, 1:]
        F.cross_entropy(logits_BTV[chosen_BT], tokens_BT[:, 1:][chosen_BT]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            progress(step / steps, f"warm start, step {step}/{steps}")
