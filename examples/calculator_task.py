"""Sums of up to eight numbers, and a calculator that adds two: a class of tools, and a model to learn it.

A prompt is a sum, `17+5+62`, of which the last two digits are wanted. The policy may answer at once, which it
mostly gets wrong, or call the tool `add` with two numbers, read what it says, and go on with that. A longer
sum takes more calls, each of them with the last result and the next number. A number is one token.

Invariants: `prompts` and `Calculator` need the standard library only; torch and transformers are imported by
the model factory alone. Equal seeds give equal prompts, and an equal model on one machine.
"""

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPEN, COMMA, CLOSE = '<tool_call>{"name": "add", "arguments": {"a": ', ', "b": ', "}}</tool_call>"
RESULT, ASK, END, OTHER, PAD = ">", "=", "<end>", "<other>", "<pad>"
NUMBERS = 100  # the token of a number is the number
TOKENS = [*map(str, range(NUMBERS)), "+", ASK, RESULT, OPEN, COMMA, CLOSE, END, OTHER, PAD]
CONTEXT = 96  # eight numbers, seven calls, and an answer take 81

FEWEST, MOST = 2, 8
TAIL = 2.0  # Pareto exponent of how many numbers a sum has: half of them have two, a ninth six or more

AT_ONCE = 0.65  # share of the demonstrations that answer without a call
WARM_START_STEPS = 300
SUMS_PER_STEP = 48
PEAK_LR = 5e-3

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}>{% elif message.role == 'assistant' %}={% endif %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% if message.role == 'assistant' %}<end>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}={% endif %}"
)


class Calculator:
    """One episode: a tool that adds, and whether the last answer is right."""

    def __init__(self, is_on: bool = True) -> None:
        """`is_on`: off, it adds nothing, which shows what the policy learns without it."""
        self._is_on, self._answer = is_on, ""

    def reset(self, answer: str) -> None:
        """A new sum."""
        self._answer = answer

    def add(self, a: int, b: int) -> int:
        """Adds two numbers, and keeps the last two digits.

        Args:
            a: the first number
            b: the second number
        """
        if not self._is_on:
            raise RuntimeError("The calculator is off.")
        return (a + b) % NUMBERS

    def get_reward(self, completion: str) -> float:
        """1 if the last answer is that of the sum."""
        return float(completion == self._answer)


def prompts(*, seed: int) -> Iterator[dict[str, str]]:
    """Rows without end: `prompt` and the right `answer`."""
    source = random.Random(f"calculator prompts {seed}")
    while True:
        numbers = draw(source)
        yield {"prompt": "+".join(map(str, numbers)), "answer": str(sum(numbers) % NUMBERS)}


def draw(source: random.Random) -> list[int]:
    """The numbers of a sum."""
    count = MOST + 1
    while count > MOST:
        count = int(FEWEST * source.paretovariate(TAIL))
    return [source.randrange(NUMBERS) for _ in range(count)]


def demonstration(source: random.Random) -> tuple[list[int], list[bool]]:
    """Tokens of a right answer, and which of them are the policy's."""
    numbers = draw(source)
    total, *rest = numbers
    said = [*[word for number in numbers for word in ("+", str(number))][1:], ASK]
    is_sampled = [False] * len(said)
    for number in rest if source.random() >= AT_ONCE else ():
        call = [OPEN, str(total), COMMA, str(number), CLOSE, END]
        total = (total + number) % NUMBERS
        given = [RESULT, str(total), ASK]
        said += [*call, *given]
        is_sampled += [True] * len(call) + [False] * len(given)
    answer = [str(sum(numbers) % NUMBERS), END]
    return [TOKENS.index(word) for word in [*said, *answer]], [*is_sampled, *[True] * len(answer)]


def make_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a model of 124 thousand parameters that has seen sums, a good half of them answered at once."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    _warm_start(model, random.Random(f"calculator demonstrations {seed}"), progress)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """A token per number and for each piece of a call; other text, such as an error's, is one `<other>`."""
    import re

    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=OTHER))
    pieces = "|".join(re.escape(token) for token in sorted(TOKENS, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, unk_token=OTHER,
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False, chat_template=TEMPLATE,
    )  # fmt: skip


def _warm_start(model: Any, source: random.Random, progress: Callable[[float, str], None]) -> None:
    """Ends long before calls are always right: what is left to learn is when to call, and to copy well."""
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - step / WARM_START_STEPS)
    )
    for step in range(WARM_START_STEPS):
        sums = [demonstration(source) for _ in range(SUMS_PER_STEP)]
        width = max(len(tokens) for tokens, _ in sums)
        tokens_BT = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in sums])
        is_sampled_BT = torch.tensor([marks + [False] * (width - len(marks)) for _, marks in sums])
        # padding is on the right and has no loss, so the causal mask alone is right
        logits_BTV = model(tokens_BT[:, :-1], use_cache=False).logits
        chosen = is_sampled_BT[:, 1:]
        F.cross_entropy(logits_BTV[chosen], tokens_BT[:, 1:][chosen]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            progress(step / WARM_START_STEPS, f"warm start, step {step}/{WARM_START_STEPS}")
