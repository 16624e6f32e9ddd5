"""Sums of up to eight numbers, and a calculator that adds two: a class of tools, and a model to learn it.

A prompt is a sum, `17+5+62`, of which the last two digits are wanted. The policy may answer at once, which it
mostly gets wrong, or call the tool `add` with two numbers, read what it says, and go on with that. A longer
sum takes more calls, each of them with the last result and the next number. A number is one token.

Invariants: `prompts` and `Calculator` need the standard library only; torch and transformers are imported by
the model factory alone. Equal seeds give equal prompts, and an equal model on one machine.
"""

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

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
WARM_START_STEPS = 300  # what is left to learn is when to call, and to copy well
SUMS_PER_STEP = 48

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
    from small_model import write_model  # beside this file

    source = random.Random(f"calculator demonstrations {seed}")
    write_model(
        directory, make_tokenizer(), lambda: [demonstration(source) for _ in range(SUMS_PER_STEP)],
        seed=seed, steps=WARM_START_STEPS, initializer_range=0.05, progress=progress,
    )  # fmt: skip


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
