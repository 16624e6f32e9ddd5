"""Even digits in four turns: an agent whose environment takes a moment, and is a function of its words."""

import asyncio

TURNS, TURN_TOKENS = 4, 3
DIGITS, MARKS = 10, (10, 11)  # tokens of digits are below; those that the environment answers with
A_MOMENT_S = 0.05


async def episode(policy, row):
    """Share of even digits over all turns."""
    tokens = [int(digit) for digit in row["prompt"] if digit.isdigit()]
    said = []
    for turn in range(TURNS):
        answer = await policy.generate(tokens, max_tokens=TURN_TOKENS)
        said += [token for token in answer.token_ids if token < DIGITS]
        await asyncio.sleep(A_MOMENT_S)
        tokens += [*answer.token_ids, MARKS[(sum(tokens) + policy.seed + turn) % len(MARKS)]]
    return sum(digit % 2 == 0 for digit in said) / len(said) if said else 0.0
