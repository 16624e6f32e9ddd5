"""Simulated workers: rollout, reward, agent and trainer as pure state machines in virtual time.

Invariants: no clock, socket or tensor; the same seed and the same messages at the same times give the same
answers; they use the real protocol, so their driver could drive real workers with the same messages.
"""

from workers.simulated.agent import Environment, EpisodeLimits, SimulatedAgent
from workers.simulated.engine import Request, SimulatedEngine
from workers.simulated.physics import StepCost
from workers.simulated.rollout import RolloutTimes, SharedPulls, SimulatedRollout
from workers.simulated.text import SimulatedReward
from workers.simulated.trainer import SimulatedTrainer, TrainerTimes
from workers.simulated.workload import Distribution, Workload, make_distribution

__all__ = [
    "Distribution",
    "Environment",
    "EpisodeLimits",
    "Request",
    "RolloutTimes",
    "SharedPulls",
    "SimulatedAgent",
    "SimulatedEngine",
    "SimulatedReward",
    "SimulatedRollout",
    "SimulatedTrainer",
    "StepCost",
    "TrainerTimes",
    "Workload",
    "make_distribution",
]
