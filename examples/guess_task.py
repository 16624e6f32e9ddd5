"""A guessing game of several turns: a secret number, guesses, and `<`, `>` or `=` as answers.

A prompt is a secret from 0 to 30. The policy sees `?` and writes a guess, which is one token; it is told `<`
if the secret is smaller, `>` if it is larger, and `=` if it is right, and guesses again. The reward of a turn
is the share of what was still possible that its answer removed, which is why halving is best: it wins every
game in five guesses, and a player who draws each guess from what is left wins 55 of 100.

Invariants: `prompts` and `episode` need the standard library only; torch and transformers are imported by the
model factory alone. Equal seeds give equal prompts, and an equal model on one machine.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NUMBERS = 31
GUESSES = 5  # which halving never needs more of
TOKENS = [*map(str, range(NUMBERS)), *"?<>="]  # the token of a number is the number
CONTEXT = 16
START = [TOKENS.index("?")]

HALVINGS = 0.15  # share of the demonstrated guesses that halve what is left; the others are drawn from it
WARM_START_STEPS = 120
GAMES_PER_STEP = 64


def prompts(*, seed: int) -> Iterator[dict[str, int]]:
    """Rows without end: the `secret`."""
    source = random.Random(f"guess prompts {seed}")
    while True:
        yield {"secret": source.randrange(NUMBERS)}


async def episode(policy: Any, row: Mapping[str, Any], *, guesses: int = GUESSES) -> float:
    """One game: 1 for the secret within all guesses, else 0; and a reward for each guess."""
    tokens, low, high = [*START], 0, NUMBERS
    for _ in range(guesses):
        turn = await policy.generate(tokens, max_tokens=1)
        guess = turn.token_ids[0]
        answer, new_low, new_high = judge(guess, row["secret"], low, high)
        policy.reward(share_removed(high - low, new_high - new_low))
        if answer == "=":
            return 1.0
        low, high = new_low, new_high
        tokens += [guess, TOKENS.index(answer)]
    return 0.0


def judge(guess: int, secret: int, low: int, high: int) -> tuple[str, int, int]:
    """The answer, and the numbers from `low` to below `high` that are possible after it; `?` to no number."""
    if guess >= NUMBERS:
        return "?", low, high
    if guess == secret:
        return "=", guess, guess + 1
    if guess > secret:
        return "<", low, min(high, guess)
    return ">", max(low, guess + 1), high


def share_removed(before: int, after: int) -> float:
    """Of the numbers that were possible before an answer, the share that are not any more."""
    return 1 - after / before


def demonstration(source: random.Random) -> tuple[list[int], list[bool]]:
    """Tokens of a game of a player who rarely halves what is left, and which of them are guesses."""
    secret, low, high = source.randrange(NUMBERS), 0, NUMBERS
    tokens, is_guess = [*START], [False]
    for _ in range(GUESSES):
        is_halving = source.random() < HALVINGS
        guess = (low + high) // 2 if is_halving else source.randrange(low, high)
        answer, low, high = judge(guess, secret, low, high)
        tokens += [guess, TOKENS.index(answer)]
        is_guess += [True, False]
        if answer == "=":
            break
    return tokens, is_guess


def make_model(directory: str, *, seed: int, progress: Callable[[float, str], None]) -> None:
    """Write a model of 124 thousand parameters that has seen a few games of a mediocre player."""
    from small_model import write_model  # beside this file

    source = random.Random(f"guess games {seed}")
    write_model(
        directory, make_tokenizer(), lambda: [demonstration(source) for _ in range(GAMES_PER_STEP)],
        seed=seed, steps=WARM_START_STEPS, initializer_range=0.125, progress=progress,
    )  # fmt: skip


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per number and answer, then `<eos>` and `<pad>`; texts have spaces between them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*TOKENS, "<eos>", "<pad>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
