"""Faults of a simulated run: waiting times and victims, drawn from the seed.

Invariant: equal seeds and equal runs give equal faults; a fault hits a worker or a link, never the core.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from controller.config.simulation import FaultSettings

Kind = Literal["rollout_kills", "reward_kills", "stragglers", "slow_links", "agent_kills"]
KINDS: tuple[Kind, ...] = ("rollout_kills", "reward_kills", "stragglers", "slow_links", "agent_kills")


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates per virtual second and sizes; the meaning of each is with `simulation.faults`."""

    rollout_kills: float = 0.0
    reward_kills: float = 0.0
    hang_share: float = 0.3
    stragglers: float = 0.0
    straggler_factor: float = 4.0
    straggler_s: float = 60.0
    slow_links: float = 0.0
    late_share: float = 0.0
    late_s: float = 1.0
    agent_kills: float = 0.0

    @classmethod
    def of(cls, settings: FaultSettings) -> "Faults":
        """The faults of a configuration."""
        return cls(**settings.model_dump())

    @property
    def may_silence(self) -> bool:
        """Whether a worker can be silent for long, so that leases matter."""
        return any(
            (self.rollout_kills, self.reward_kills, self.agent_kills, self.slow_links, self.late_share)
        )


class FaultSource:
    """Draws faults; the host carries them out."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.faults, self.rng = faults, rng

    def start(self, at: Callable[..., None], strike: Callable[[Kind], None]) -> None:
        """Schedule the first fault of each kind: `at(delay_s, action, argument)`.

        `strike` carries it out and calls `again`.
        """
        for kind in KINDS:
            self.again(kind, at, strike)

    def again(self, kind: Kind, at: Callable[..., None], strike: Callable[[Kind], None]) -> None:
        """Schedule the next fault of a kind."""
        rate = getattr(self.faults, kind)
        if rate > 0:
            at(self.rng.expovariate(rate), strike, kind)

    def is_hang(self) -> bool:
        """Whether the worker that was hit lives on but is silent."""
        return self.rng.random() < self.faults.hang_share

    def spell_s(self) -> float:
        """How long a slow spell lasts."""
        return self.rng.expovariate(1 / self.faults.straggler_s)

    def delay_s(self, *, is_slow: bool) -> float:
        """Extra seconds of one message."""
        faults = self.faults
        if is_slow or (faults.late_share and self.rng.random() < faults.late_share):
            return self.rng.expovariate(1 / faults.late_s)
        return 0.0
