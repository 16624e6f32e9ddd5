"""The reward `model`: the output of a sequence-classification model with one output.

Invariants: all of its weights were read from disk; text of a response never becomes a special token, such as
the end of its turn.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from protocol.errors import ConfigError
from protocol.files import is_file
from protocol.model_files import TOKENIZERS
from protocol.rewards.classifier import output_problem
from protocol.rewards.kinds import ModelReward
from workers.models.model import pick_device
from workers.models.tokenizer import plain_tokens, special_tokens, unused_mark, with_joined_parts
from workers.reward.begun_answers import with_answer
from workers.reward.kinds.interface import Place, Unscorable


def make(options: ModelReward, place: Place) -> Callable[..., list[float]]:
    """A function of a whole group. Raises: ConfigError if this is no model with one output."""
    tokenizer, model = _load(options, place.device)
    tokenizer.truncation_side = "left"
    limit = min(options.max_tokens, positions(model, options.max_tokens))
    known = model.get_input_embeddings().num_embeddings
    own_pad = model.config.get_text_config().pad_token_id
    if own_pad is not None and not 0 <= own_pad < known:
        own_pad = None  # as -1 in old conversions: not a token

    def score(prompts: list[Any], completions: list[str]) -> list[float]:
        texts = [
            whole_ids(tokenizer, prompt, completion, limit=limit)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        if (largest := max((token for text in texts for token in text), default=0)) >= known:
            raise Unscorable(
                f"The tokenizer of the reward model {options.path} gives the token id {largest}, and the "
                f"model knows {known}, from 0 on. Expected the tokenizer that the model was trained with."
            )
        outputs: list[float] = []
        for begin in range(0, len(texts), options.batch):
            some = texts[begin : begin + options.batch]
            pad = free_id(some) if own_pad is None else own_pad
            model.config.get_text_config().pad_token_id = pad
            batch = {name: rows.to(model.device) for name, rows in padded(some, pad).items()}
            with torch.inference_mode():
                logits = model(**batch).logits.float()
            outputs += (logits.sigmoid() if options.sigmoid else logits)[:, 0].tolist()
        return outputs

    return score


def _load(options: ModelReward, device: str) -> tuple[Any, Any]:
    """The tokenizer and the model. Raises: ConfigError."""
    folder = Path(options.path)
    description = folder / "config.json"
    if problem := output_problem(options.path, description.read_bytes() if is_file(description) else None):
        raise ConfigError(problem)
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):  # transformers would make an empty one
        raise ConfigError(
            f"The reward model {options.path} has no tokenizer: none of {', '.join(TOKENIZERS)}. Save "
            "the one that it was trained with beside it."
        )
    device = str(pick_device(device))
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.path)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            options.path, dtype=getattr(torch, options.dtype), output_loading_info=True
        )
        model = model.to(device).eval()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"The reward model {options.path} cannot be loaded on {device}: {error}") from None
    # transformers fills absent weights with random numbers and only logs it
    if absent := sorted(report["missing_keys"]):
        raise ConfigError(
            f"The reward model {options.path} lacks {len(absent)} weights of a {type(model).__name__}, first "
            f"{absent[0]}. Expected a model that was saved with its head; that of a causal language model "
            "gives no reward."
        )
    return tokenizer, model


def positions(model: Any, most: int) -> int:
    """Tokens that the model has positions for; `most` if its configuration does not say.

    Models like RoBERTa start their positions after that of the padding.
    """
    found = getattr(model.config, "max_position_embeddings", most)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            found = min(found, module.num_embeddings - module.padding_idx - 1)
    return found


def whole_ids(tokenizer: Any, prompt: Any, completion: str, *, limit: int) -> list[int]:
    """Prompt and response in the format that the model was trained on: its chat template, if it has one.

    The last `limit` tokens. A template writes all special tokens itself; other text gets those of the
    tokenizer.
    """
    completion, hidden = _hide(tokenizer, completion, beside=str(prompt))
    text, is_written_whole = f"{prompt}{completion}", False
    if isinstance(prompt, list):
        talk = with_joined_parts(prompt)
        if is_written_whole := bool(tokenizer.chat_template):
            text = tokenizer.apply_chat_template(with_answer(talk, completion), tokenize=False)
        else:
            text = "\n".join(str(message.get("content", "")) for message in talk) + f"\n{completion}"
    if not hidden:
        found = tokenizer(text, add_special_tokens=not is_written_whole, truncation=True, max_length=limit)
        return found["input_ids"]
    tokens: list[int] = []
    for part in re.split("(" + "|".join(hidden) + ")", text):
        if part in hidden:
            tokens += plain_tokens(tokenizer, hidden[part])
        elif part:
            tokens += tokenizer(part, add_special_tokens=False)["input_ids"]
    before, after = ([], []) if is_written_whole else _around(tokenizer)
    room = max(1, limit - len(before) - len(after))
    return [*before, *tokens[-room:], *after]


def _hide(tokenizer: Any, completion: str, *, beside: str) -> tuple[str, dict[str, str]]:
    """The response with stand-ins for texts that spell special tokens, and the text of each stand-in."""
    spelt = [token for token in special_tokens(tokenizer) if token in completion]
    hidden: dict[str, str] = {}
    mark = unused_mark((completion, beside)) if spelt else ""
    for place, token in enumerate(spelt):
        hidden[f"{mark}{place}{mark}"] = token
        completion = completion.replace(token, f"{mark}{place}{mark}")
    return completion, hidden


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and behind a text."""
    bare, whole = (tokenizer("a", add_special_tokens=is_added)["input_ids"] for is_added in (False, True))
    begin = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:begin], whole[begin + len(bare) :]


def free_id(texts: Sequence[Sequence[int]]) -> int:
    """A token id for padding that is not the last token of any of these texts.

    transformers reads the output at the last token that is not padding, and so at each text's own last token.
    """
    ends = {text[-1] for text in texts}
    return next(token for token in range(len(ends) + 1) if token not in ends)


def padded(texts: Sequence[Sequence[int]], pad: int) -> dict[str, torch.Tensor]:
    """A batch of these texts, [B, T], padded at their ends, where the mask hides the padding."""
    rows = [torch.tensor(text) for text in texts]
    masks = [torch.ones_like(row) for row in rows]
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=pad),
        "attention_mask": pad_sequence(masks, batch_first=True),
    }
