"""The reward `model`: the output of a sequence-classification model with one output."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from protocol.errors import ConfigError
from protocol.rewards.classifier import output_problem
from protocol.rewards.kinds import ModelReward
from workers.reward.kinds.interface import Place


def make(options: ModelReward, place: Place) -> Callable[..., list[float]]:
    """A function of a whole group. Raises: ConfigError if this is no model with one output."""
    description = Path(options.path) / "config.json"
    if problem := output_problem(options.path, description.read_bytes() if description.is_file() else None):
        raise ConfigError(problem)
    device = place.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.path)
        model = AutoModelForSequenceClassification.from_pretrained(
            options.path, dtype=getattr(torch, options.dtype)
        )
        model = model.to(device).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"The reward model {options.path} cannot be loaded on {device}: {error}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    tokenizer.truncation_side = "left"
    positions = getattr(model.config, "max_position_embeddings", options.max_tokens)
    limit = min(options.max_tokens, positions)

    def score(prompts: list[Any], completions: list[str]) -> list[float]:
        texts = [
            whole_text(tokenizer, prompt, completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        outputs: list[float] = []
        for begin in range(0, len(texts), options.batch):
            batch = tokenizer(
                texts[begin : begin + options.batch],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=limit,
            ).to(device)
            with torch.inference_mode():
                logits = model(**batch).logits.float()
            outputs += (logits.sigmoid() if options.sigmoid else logits)[:, 0].tolist()
        return outputs

    return score


def whole_text(tokenizer: Any, prompt: Any, completion: str) -> str:
    """Prompt and response as the model was trained on them: by its chat template, if it has one."""
    if isinstance(prompt, list):
        if tokenizer.chat_template:
            talk = [*prompt, {"role": "assistant", "content": completion}]
            return tokenizer.apply_chat_template(talk, tokenize=False)
        prompt = "\n".join(str(message.get("content", "")) for message in prompt)
        return f"{prompt}\n{completion}"
    return f"{prompt}{completion}"
