"""Which scored groups are worth training on: `keep(rewards) -> bool`.

A dropped group is replaced by one fresh prompt. `rewards`: of each response, or of each episode of an agent,
the reward as it was given. With `agent.turn_rewards`, `zero_variance` (and no other filter) is given
the advantages of each turn: a group is kept if those of any turn differ, or, with `agent.turn_advantages` of
the user's, if any two advantages differ.
"""

from collections.abc import Callable, Sequence

Filter = Callable[[Sequence[float]], bool]


def keep_all(rewards: Sequence[float]) -> bool:
    """Keep every group, even those without signal."""
    del rewards
    return True


def has_variance(rewards: Sequence[float]) -> bool:
    """Keep groups whose rewards differ; equal rewards give zero advantages.

    Source: DAPO (arXiv 2503.14476), dynamic sampling.
    """
    return max(rewards) > min(rewards)


FILTERS: dict[str, Filter] = {"none": keep_all, "zero_variance": has_variance}
