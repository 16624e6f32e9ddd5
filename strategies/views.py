"""The frozen pictures that strategies decide on.

Invariant: a strategy sees nothing else, keeps nothing between two calls, and changes nothing.
"""

from typing import NamedTuple


class InstanceView(NamedTuple):
    """One rollout instance that could take work, as the controller believes it to be."""

    index: int  # place in the list given to the strategy; what a routing function returns
    policy_version: int
    running: int  # trajectories routed and not returned
    resident_tokens: int  # prompt and response tokens of those
    capacity: int  # trajectories that it runs at once
    kv_tokens: int  # tokens that its KV cache holds
    groups: frozenset[int] = frozenset()  # groups with a member there, for prefix sharing


class WorkView(NamedTuple):
    """One trajectory that waits for an instance."""

    group: int
    resident_tokens: int  # prompt and response so far: what has to be prefilled
    min_version: int  # it may run at this policy version or any newer one
    is_fresh: bool  # no member of its group has started


class SyncView(NamedTuple):
    """One instance that holds an older version than the newest published."""

    index: int
    policy_version: int
    running: int
    resident_tokens: int


class Settings(NamedTuple):
    """Knobs that strategies share (`staleness.*` in the configuration)."""

    mu: float = 0.3
    newest_version: int = 0
