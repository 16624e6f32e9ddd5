"""The frozen views that strategies get as input.

Invariant: a strategy sees nothing else, keeps no state between two calls, and changes nothing.
"""

from typing import NamedTuple

from strategies.cost_model import QWEN_7B_TP1, Coefficients


class InstanceView(NamedTuple):
    """One rollout instance in the controller's current state.

    Every decided route and return counts, acknowledged or not (StaleFlow's speculative state).
    """

    # the instance's name in the core: the value that a strategy returns
    id: int
    policy_version: int
    running: int  # trajectories routed and not returned
    resident_tokens: int  # prompt and response tokens of those
    capacity: int  # trajectories that it runs at once
    kv_tokens: int  # tokens that its KV cache holds, less a reserve learned from preemptions
    expected_tokens: int = 0  # prompt and predicted response tokens of those that run, at their end
    coefficients: Coefficients = QWEN_7B_TP1  # of its engine: fitted online, or from a profile
    has_sibling: bool = False  # a member of the work's group runs there, so its prompt is in the KV cache
    urgent: int = 0  # trajectories there that need much of the time until their groups are due
    waiting: int = 0  # trajectories in the engine's own queue, by its last report


class WorkView(NamedTuple):
    """One trajectory that waits for an instance."""

    group: int
    resident_tokens: int  # prompt and response so far: what has to be prefilled
    min_version: int  # it may run at this policy version or a newer one
    is_fresh: bool  # no member of its group has started
    expected_tokens: int = 0  # prompt and predicted response tokens at its end
    slack: int = 0  # train steps that may pass before its group is due
    home: int = -1  # instance that may still have the KV of earlier turns; -1: none
    held_tokens: int = 0  # of `resident_tokens`, those that need no prefill there


class SyncView(NamedTuple):
    """One instance with an older version than the newest published."""

    id: int
    policy_version: int
    running: int
    resident_tokens: int
    capacity: int = 1 << 30
    coefficients: Coefficients = QWEN_7B_TP1
    pull_s: float = 0.0  # duration of its last pull
    restart_s: float = 0.0  # prefill that a pull makes necessary: interrupted trajectories lose their KV
    waiting: int = 0  # trajectories in the engine's own queue, by its last report
    kv_tokens: int = 1 << 60
    useful: int = 0  # queued trajectories that could run at its present version
    parked: int = 0  # trajectories that wait for their environments, with KV perhaps still here
    parked_tokens: int = 0  # of the parked trajectories


class RunningView(NamedTuple):
    """One trajectory on an instance, as a candidate for a move."""

    # the trajectory's name in the core
    id: int
    resident_tokens: int
    remaining_tokens: int  # predicted
    min_version: int  # it may go on at this policy version or a newer one
    slack: int  # train steps that may pass before its group is due; 0: the next batch waits for it
    here_tokens: int = 1 << 30  # generated where it is now


class Settings(NamedTuple):
    """Settings of `staleness` that strategies share, and measurements over all instances."""

    mu: float = 0.3
    newest_version: int = 0
    fresh: int = 0  # trajectories that may start now under the newest version
    typical_tokens: int = 1  # mean of the predicted tokens of a fresh trajectory at its end, prompt included
    horizon_s: float = 1.0  # mean time between two versions
    guard: bool = False  # pull a version only when the batch that updates it is ready
    is_batch_ready: bool = False  # that batch is, or is already in training
    is_tail_bound: bool = False  # the trainer waits for the longest responses more than for groups
    indicator: str = "kv"
    indicator_threshold: float = 0.6
    phi_throughput: float = 5.0
    sync_steps: int = 1  # pull only versions that are a multiple of this
    uses_prediction: bool = True
    keeps_kv: bool = True  # whether trajectories stay on their instance during a pull
    urgency: float = 0.0  # worth of a token/s of an urgent trajectory, relative to any other
    affinity: bool = True  # count the prefill that a turn saves where its trajectory ran before


KNOBS = {
    "mu": "mu", "guard": "guard", "indicator": "indicator", "indicator_threshold": "indicator_threshold",
    "phi_throughput": "phi_throughput", "sync_steps": "sync_steps", "uses_prediction": "length_prediction",
    "keeps_kv": "keep_kv", "urgency": "urgency", "affinity": "affinity",
}  # fmt: skip
"""The fields of `Settings` that the user sets, with their keys of `staleness`; the others are measured."""


class AdmissionView(NamedTuple):
    """The groups in the system, as input of admission. Units: groups, versions."""

    max_staleness: int
    batch_groups: int
    train_version: int
    published_version: int
    generating: int  # started and not yet scored
    occupied: int  # scored and waiting for their batch
    started: int  # since the run began, less those that were given up
    pulled_version: int = 0  # newest version that instances were told to load
    started_since_pull: int = 0
    in_system_at_pull: int = 0  # generating and occupied at that time
    spare_groups: int = 0
    cap: float = 0.0  # of the adaptive rule: groups in the system
    is_tail_bound: bool = True  # the trainer waits for the longest responses more than for groups
    is_fresh: bool = False  # `staleness.objective: fresh`: age counts more than speed
