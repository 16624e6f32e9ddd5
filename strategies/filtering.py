"""Which scored groups are worth training on: `keep(rewards) -> bool`.

A dropped group is replaced by one fresh prompt. `rewards`: the reward of each response, or of each episode of
an agent. With `agent.turn_rewards`, `zero_variance` alone is applied otherwise: to the advantages of each
turn. A group is kept if those of any turn differ, or, with a user's `agent.turn_advantages`, if any two of
the group do.
"""

from collections.abc import Callable, Sequence

Filter = Callable[[Sequence[float]], bool]


def keep_all(rewards: Sequence[float]) -> bool:
    """Keep every group, also without signal."""
    del rewards
    return True


def has_variance(rewards: Sequence[float]) -> bool:
    """Keep groups whose rewards differ; equal rewards give zero advantages.

    Source: DAPO (arXiv 2503.14476), dynamic sampling.
    """
    return max(rewards) > min(rewards)


FILTERS: dict[str, Filter] = {"none": keep_all, "zero_variance": has_variance}
