"""Which scored groups are worth training on: `keep(rewards) -> bool`.

A dropped group is replaced by one fresh prompt. `rewards`: of each response, or of each episode of an agent,
the reward as it was given. With `agent.turn_rewards`, `zero_variance` alone is asked otherwise: about the
advantages of each turn, and a group is kept where those of any turn differ, or where any two do with
`agent.turn_advantages` of the user's.
"""

from collections.abc import Callable, Sequence

Filter = Callable[[Sequence[float]], bool]


def keep_all(rewards: Sequence[float]) -> bool:
    """Every group, also those without signal."""
    del rewards
    return True


def has_variance(rewards: Sequence[float]) -> bool:
    """Keep groups whose rewards differ; equal rewards give zero advantages.

    Source: DAPO (arXiv 2503.14476), dynamic sampling.
    """
    return max(rewards) > min(rewards)


FILTERS: dict[str, Filter] = {"none": keep_all, "zero_variance": has_variance}
