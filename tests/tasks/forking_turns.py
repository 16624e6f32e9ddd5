"""Even digits by three conversations at once and one that is edited: an agent whose episodes fork."""

import asyncio

TURN_TOKENS, DIGITS = 3, 10


async def episode(policy, row):
    """Share of even digits in all that is trained."""
    tokens = [int(digit) for digit in row["prompt"] if digit.isdigit()]
    first = await policy.generate(tokens, max_tokens=TURN_TOKENS)
    after = [*tokens, *first.token_ids]
    title = policy.untrained.generate([*after, 11], max_tokens=TURN_TOKENS)
    helpers = [policy.generate([*tokens, mark], max_tokens=TURN_TOKENS) for mark in (10, 11)]
    *answers, named = await asyncio.gather(*helpers, title)
    answers.append(await policy.generate([*after, 10], max_tokens=TURN_TOKENS))
    answers.append(await policy.generate([*after[:-1], 10], max_tokens=TURN_TOKENS))  # an edited history
    policy.metric("title", float(len(named.token_ids)))
    said = [token for answer in (first, *answers) for token in answer.token_ids if token < DIGITS]
    return sum(digit % 2 == 0 for digit in said) / len(said) if said else 0.0
