"""Even digits in four turns, as an environment that is saved: what it answers is no function of its words.

Each time that it begins, goes on or steps, it adds a line to the file LIVES.
"""

import asyncio
import json
import os
import random

TURNS, TURN_TOKENS = 4, 3
DIGITS, MARKS = 10, (10, 11)
A_MOMENT_S = 0.05


def note(*words):
    """A line to the file."""
    with open(os.environ["LIVES"], "a") as file:
        print(*words, file=file)


async def episode(policy, row):
    """Share of even digits over all turns."""
    if policy.saved is None:
        tokens, said = [int(digit) for digit in row["prompt"] if digit.isdigit()], []
        note("begins", row["prompt"], policy.seed)
    else:
        tokens, said = json.loads(policy.saved)
        note("goes on", row["prompt"], policy.seed)
    while len(said) < TURNS:
        policy.save(json.dumps([tokens, said]).encode())
        answer = await policy.generate(tokens, max_tokens=TURN_TOKENS)
        digits = [token for token in answer.token_ids if token < DIGITS]
        said.append([digit % 2 == 0 for digit in digits])
        await asyncio.sleep(A_MOMENT_S)
        tokens += [*answer.token_ids, random.SystemRandom().choice(MARKS)]
    flat = [is_even for turn in said for is_even in turn]
    return sum(flat) / len(flat) if flat else 0.0
