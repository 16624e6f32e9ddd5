"""The ledger task: a verifiable task, its prompts, and a model small enough to learn it on a laptop in
minutes.

A prompt is a string of digits, `5807:`. The response writes the digits in ascending order, in groups of its
own choosing, each group followed by the running total modulo 10, and ends with the total: `05=5 7=2 8=0 #0`.
The whole working is checked, so guessing scores nothing.

Invariants: `prompts` and `reward` need the standard library only; torch and transformers are imported by the
model factory alone. Equal seeds give equal prompts, and an equal model on one machine.

Why this task: the number of digits is heavy-tailed, so response lengths are too, which is what an
asynchronous engine is for; small groups are longer and easier to get right, so lengths change while the
policy learns.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

ALPHABET = "0123456789:= #"
FEWEST_DIGITS, MOST_DIGITS = 3, 32
TAIL = 1.4  # Pareto exponent of the number of digits: median 4, p90 12
CONTEXT = 256  # 33 prompt tokens and at most 132 response tokens fit
DENSE: dict[str, Any] = {"kind": "qwen3", "intermediate_size": 192}

LARGEST_GROUP = 3  # of demonstrations; larger groups make shorter responses that are harder to get right
DEMONSTRATION_TAIL = 2.0  # fewer long ones than among the prompts: what is left to learn is the long ones
WARM_START_STEPS = 1000
TOKENS_PER_STEP = 512  # demonstrations of similar lengths, so hardly any padding
POOL = 512  # demonstrations that are sorted by length together
PEAK_LR = 1e-2
RISE_STEPS = 20
IGNORED = -100  # torch's label without a loss

WORKING = re.compile(r"((?:\d+=\d )+)#(\d)")


def prompts(*, seed: int) -> Iterator[dict[str, str]]:
    """Rows without end: `prompt` and the right `answer`."""
    source = random.Random(f"ledger prompts {seed}")
    while True:
        digits = _draw_digits(source, TAIL)
        yield {"prompt": f"{digits}:", "answer": str(sum(map(int, digits)) % 10)}


def reward(prompt: str, completion: str, ending: str) -> float:
    """1.0 if the response ended by itself, used every digit once in ascending order, and every total is
    right; else 0.0.
    """
    match = WORKING.fullmatch(completion)
    if ending != "stop" or match is None:
        return 0.0
    total, used = 0, ""
    for entry in match[1].split():
        group, _, claimed = entry.partition("=")
        used += group
        total = (total + sum(map(int, group))) % 10
        if total != int(claimed):
            return 0.0
    return float(used == "".join(sorted(prompt.rstrip(":"))) and total == int(match[2]))


def demonstration(digits: str, source: random.Random) -> str:
    """A right response to `digits`, with group sizes drawn at random."""
    rest, total, entries = "".join(sorted(digits)), 0, []
    while rest:
        size = source.randint(1, LARGEST_GROUP)
        group, rest = rest[:size], rest[size:]
        total = (total + sum(map(int, group))) % 10
        entries.append(f"{group}={total}")
    return f"{' '.join(entries)} #{total}"


def demonstrations(*, seed: int) -> Iterator[dict[str, str]]:
    """Rows without end for supervised training: `prompt` and a right `response`."""
    source = random.Random(f"ledger demonstrations {seed}")
    while True:
        digits = _draw_digits(source, DEMONSTRATION_TAIL)
        yield {"prompt": f"{digits}:", "response": demonstration(digits, source)}


def make_untrained_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write the model with random weights, and its tokenizer, to `directory`."""
    model, tokenizer = _new_model(seed, **DENSE)
    progress(0.5, "random weights")
    _save(model, tokenizer, directory)


def make_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a warm-started model of 124 thousand parameters and its tokenizer to `directory`; about 20 s on
    one core.

    It solves about a quarter of the prompts at temperature 1. `progress(fraction, text)` is called
    along the way.
    """
    _write(directory, seed, progress, **DENSE)


def make_mixture(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a warm-started mixture, of 4 experts of which each token passes 2, and its tokenizer."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    _write(directory, seed, progress, kind="qwen3_moe", norm_topk_prob=True, **experts)


def make_hybrid(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a warm-started model with a layer of linear attention (Qwen 3.5's), and its tokenizer."""
    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "intermediate_size": 192}
    kinds = ["linear_attention", "full_attention"]
    _write(directory, seed, progress, kind="qwen3_5_text", layer_types=kinds, **heads, **sizes)


def _write(directory: str, seed: int, progress: Callable[[float, str], None], **shape: Any) -> None:
    model, tokenizer = _new_model(seed, **shape)
    _warm_start(model, tokenizer, random.Random(f"ledger demonstrations {seed}"), progress)
    _save(model, tokenizer, directory)


def _new_model(seed: int, *, kind: str, **shape: Any) -> "tuple[Any, PreTrainedTokenizerFast]":
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    config = AutoConfig.for_model(
        kind, **shape, vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.125,  # with the default 0.02 a model of this size learns far more slowly
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config), tokenizer


def _save(model: Any, tokenizer: "PreTrainedTokenizerFast", directory: str) -> None:
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per character, then `<eos>` and `<pad>`: 16 in all."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*ALPHABET, "<eos>", "<pad>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _draw_digits(source: random.Random, tail: float) -> str:
    length = MOST_DIGITS + 1
    while length > MOST_DIGITS:
        length = int(FEWEST_DIGITS * source.paretovariate(tail))
    return "".join(source.choices("0123456789", k=length))


def _warm_start(
    model: Any, tokenizer: Any, source: random.Random, progress: Callable[[float, str], None]
) -> None:
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _lr_share)
    batches = islice(_demonstration_batches(tokenizer, source), WARM_START_STEPS)
    for step, (tokens_BT, labels_BT) in enumerate(batches, 1):
        # padding is on the right and its labels are ignored, so the causal mask alone is right
        logits_BTV = model(tokens_BT[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            progress(step / WARM_START_STEPS, f"warm start, step {step}/{WARM_START_STEPS}")


def _lr_share(step: int) -> float:
    """Share of the peak learning rate: a linear rise, then a cosine down to 5 %."""
    if step < RISE_STEPS:
        return (step + 1) / RISE_STEPS
    done = min(1.0, (step - RISE_STEPS) / (WARM_START_STEPS - RISE_STEPS))
    return 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2


def _demonstration_batches(
    tokenizer: Any, source: random.Random
) -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
    """Batches without end of (tokens, labels), [B, T] of similar lengths, at most TOKENS_PER_STEP each."""
    import torch

    vocabulary, eos, pad = tokenizer.get_vocab(), tokenizer.eos_token_id, tokenizer.pad_token_id
    while True:
        rows: list[tuple[list[int], int]] = []  # tokens, how many of them are the prompt's
        for _ in range(POOL):
            digits = _draw_digits(source, DEMONSTRATION_TAIL)
            text = f"{digits}:{demonstration(digits, source)}"
            rows.append(([*(vocabulary[character] for character in text), eos], len(digits) + 1))
        rows.sort(key=lambda row: len(row[0]))
        groups: list[list[tuple[list[int], int]]] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0]) > TOKENS_PER_STEP:
                groups.append([])
            groups[-1].append(row)
        source.shuffle(groups)
        for group in groups:
            width = len(group[-1][0])
            yield (
                torch.tensor([tokens + [pad] * (width - len(tokens)) for tokens, _ in group]),
                torch.tensor(
                    [
                        [IGNORED] * start + tokens[start:] + [IGNORED] * (width - len(tokens))
                        for tokens, start in group
                    ]
                ),
            )
